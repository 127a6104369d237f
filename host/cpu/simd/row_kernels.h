// The fold of gathered rows of several values (gatherer.h), vectorised as kernels.h describes.
#ifndef SPARSEAGG_HOST_CPU_SIMD_ROW_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_ROW_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/cpu/rows/direct_output.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// The rows of one update, or those that were folded before.
struct RowSource {
  const std::byte* values = nullptr;
  uint64_t num_values = 0;
  double weight = 1.0;
  DType dtype = DType::kFloat32;
  bool is_folded = false;  // the values are accumulators, of kFloat64 or, with fixed ones, kInt64
};

struct RowOrigin {
  uint32_t source;  // index of a RowSource
  uint64_t row;
};

struct CollectedRows {
  const RowSource* sources = nullptr;
  const RowOrigin* origins = nullptr;
  const uint32_t* order = nullptr;   // of the origins: by key, and within a key canonical
  const uint32_t* ends = nullptr;    // of each key's part of the order
  const double* divisors = nullptr;  // of each key's sums; null: the output's total, if any
  const uint64_t* places = nullptr;  // the output's row for each key; null: one behind another
  size_t num_keys = 0;
  bool fixed = false;
  double bound = 0.0;  // fixed: terms are clipped to ±bound
  double scale = 1.0;  // fixed: 2^s
};

// Folds the rows of each key from left to right (terms as of AddToTable) to one finished row; writes nothing beside
// them.
void FoldRowsTo(const CollectedRows& rows, const DirectValues& output);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_ROW_KERNELS_H_
