// Kernel of the sums of rows of several values (merge/row_sums.h). See kernels.h for targets.
#ifndef SPARSEAGG_HOST_CPU_SIMD_ROW_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_ROW_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/cpu/rows/direct_output.h"
#include "host/cpu/simd/value_scale.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// The rows of one update, or of the base.
struct RowSource {
  const std::byte* values = nullptr;
  uint64_t num_values = 0;
  ValueScale scale;
  DType dtype = DType::kFloat32;
  bool is_folded = false;  // of the base: the values are accumulators, kFloat64, or kInt64 in fixed point
};

// Where a row is: its source, and its number there.
struct RowOrigin {
  uint32_t source;  // index of a RowSource
  uint64_t row;
};

// The rows to sum, grouped by key.
struct CollectedRows {
  const RowSource* sources = nullptr;
  const RowOrigin* origins = nullptr;
  const uint32_t* order = nullptr;   // indexes of origins: by key, and within a key in canonical order
  const uint32_t* ends = nullptr;    // for each key, the end of its part of `order`
  const double* divisors = nullptr;  // for each key, if the output divides by count or weight; else null
  const uint64_t* places = nullptr;  // for each key, its row of the output; null: rows follow each other
  size_t num_keys = 0;
  bool all_float32 = false;  // so are the values of all sources, and none is of the base
  ValueScale folded;         // float sums: of the update whose repeated keys are folded, applied to folded rows
  bool fixed = false;
  double bound = 0.0;  // fixed: terms are clipped to ±bound
  double scale = 1.0;  // fixed: 2^s
};

// Folds the rows of each key from left to right and writes one finished row a key. Terms are those of AddToTable.
// Deterministic: the bits are those of a scalar left fold.
void FoldRowsTo(const CollectedRows& rows, const DirectValues& output);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_ROW_KERNELS_H_
