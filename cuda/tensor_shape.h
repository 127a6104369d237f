// A tensor's spec in the terms of kernels.
#ifndef SPARSEAGG_CUDA_TENSOR_SHAPE_H_
#define SPARSEAGG_CUDA_TENSOR_SHAPE_H_

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/check.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/segments.h"
#include "host/spec/spec.h"

namespace sparseagg::cuda {

Number ToNumber(DType dtype);

// What merging and finishing ask of a tensor. Made once per accumulator; immutable.
struct TensorShape {
  explicit TensorShape(const TensorSpec& spec);

  // Per submission: how its values become terms, and what its keys' weights add.
  Source MakeSource(double weight) const;
  uint64_t dimension = 0;  // as in the spec
  uint32_t key_bytes = 4;
  int key_bits = 32;     // that may differ between keys
  uint32_t columns = 1;  // accumulators a key; 0 for UNION
  size_t row_bytes = 4;  // of a row of values as sent
  Number type = Number::kFloat32;
  FoldKind fold = FoldKind::kSumFloat;
  TermScale scale;
  bool uniform = true;  // terms are not weighted
  bool counts = false;  // the number of contributors is asked for
  WeightKind key_weights = WeightKind::kCounts;
  double weight_scale = 1.0;  // 2^t of WeightKind::kFixed

  // Bytes of a folded row.
  size_t RowBytes() const;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TENSOR_SHAPE_H_
