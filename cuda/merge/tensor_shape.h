// TensorShape: a tensor's spec in the terms of the kernels.
#ifndef SPARSEAGG_CUDA_MERGE_TENSOR_SHAPE_H_
#define SPARSEAGG_CUDA_MERGE_TENSOR_SHAPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cuda/kernels/check.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/order.h"
#include "cuda/kernels/segments.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

Number ToNumber(DType dtype);

// Whether the device merges such a tensor. Of order statistics it has those of floats whose votes are equal.
bool IsForDevice(const TensorSpec& spec);

// The properties of a tensor that merging and finishing need. Made once per accumulator; immutable, so thread-safe.
struct TensorShape {
  explicit TensorShape(const TensorSpec& spec);

  // Returns: how an update's values turn into terms, and what it adds to the weights of its keys.
  Source MakeSource(const ValidatedUpdate& update) const;
  uint64_t num_rows = 0;  // as in the spec
  uint32_t key_bytes = 4;
  int key_bits = 32;     // low bits in which keys can differ: the bits to sort
  uint32_t columns = 1;  // accumulators per key; 0 for UNION
  size_t row_bytes = 4;  // of a row of values as sent
  Number type = Number::kFloat32;
  FoldKind fold = FoldKind::kSumFloat;
  TermScale scale;
  bool weighted = false;  // terms are multiplied by weights
  bool scaled = false;    // values are multiplied by factors: the tensor has bounds
  bool uniform = true;    // neither
  bool counts = false;    // the number of contributors per key is needed
  WeightKind key_weights = WeightKind::kCounts;
  double weight_scale = 1.0;       // 2^t of WeightKind::kFixed
  std::optional<OrderRule> order;  // of an order statistic, which stands in the place of the fold

  // Bytes of one folded row, all columns.
  size_t RowBytes() const;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_TENSOR_SHAPE_H_
