// Kernel that fills the table of a table fold (merge/table_fold.h). See kernels.h for targets.
#ifndef SPARSEAGG_HOST_CPU_SIMD_TABLE_FOLD_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_TABLE_FOLD_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/cpu/rows/count_bytes.h"
#include "host/cpu/simd/cursor.h"

namespace sparseagg::cpu {

// A window of keys, from `first` to `last`, and its table of `columns` ≥ 1 accumulators a key. Updates are of floats.
template <typename Key>
struct TableWindow {
  Cursor<Key>* cursors = nullptr;
  size_t num_cursors = 0;
  Key first = 0;
  Key last = 0;
  size_t columns = 1;
  void* table = nullptr;  // double; int64_t if `fixed`
  CountBytes count_bytes = CountBytes::kNone;
  void* counts = nullptr;  // unsigned, count_bytes wide; kNone or kFour if weights are summed
  // Sums of weights, double; int64_t if `fixed`. Null: not summed.
  void* weights = nullptr;
  double weight_scale = 1.0;  // fixed: 2^t
  size_t tuples_ahead = 0;    // tuples ahead of a cursor to prefetch
  bool fixed = false;
  double bound = 0.0;  // fixed: terms are clipped to ±bound
  double scale = 1.0;  // fixed: 2^s
};

// Adds the tuples with keys up to `last`, cursor after cursor, and moves the cursors behind them. For a tuple at slot
// s = key − first, it adds
//   value · weight + 0.0 to table[s], each product and sum rounded to float64; if `fixed`:
//   rint(clamp(value · weight, ±bound) · scale)
//   1 to counts[s]
//   the weight to weights[s]
// Returns: the number of tuples.
// Deterministic: the bits do not depend on the SIMD target.
uint64_t AddToTable(const TableWindow<uint32_t>& window);
uint64_t AddToTable(const TableWindow<uint64_t>& window);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_TABLE_FOLD_KERNELS_H_
