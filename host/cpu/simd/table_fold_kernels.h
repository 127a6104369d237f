// The inner loop that fills the table of a sweep (sweeper.h), vectorised as kernels.h describes.
#ifndef SPARSEAGG_HOST_CPU_SIMD_TABLE_FOLD_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_TABLE_FOLD_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/cpu/rows/count_bytes.h"
#include "host/cpu/simd/cursor.h"

namespace sparseagg::cpu {

// A window of keys, first to last, of float updates: `columns` ≥ 1 accumulators a key, slot after slot.
template <typename Key>
struct TableWindow {
  Cursor<Key>* cursors = nullptr;
  size_t num_cursors = 0;
  Key first = 0;
  Key last = 0;
  size_t columns = 1;
  void* table = nullptr;  // double; int64_t where `fixed`
  CountBytes count_bytes = CountBytes::kNone;
  void* counts = nullptr;  // unsigned, count_bytes wide; kNone or kFour where there are weights
  // Null: no sums of weights. Else as the table: double; int64_t of weight_scale = 2^t to 1 where `fixed`.
  void* weights = nullptr;
  double weight_scale = 1.0;
  size_t tuples_ahead = 0;  // how far ahead of a cursor memory is asked for
  bool fixed = false;
  double bound = 0.0;  // fixed: terms are clipped to ±bound
  double scale = 1.0;  // fixed: 2^s
};

// Adds every cursor's tuples with keys ≤ last, cursor after cursor, and moves the cursors behind them:
// table[key − first] += value · weight + 0.0, each product and sum rounded to float64; where `fixed`,
// rint(clamp(value · weight) · scale); and one to counts[key − first], the weight to weights[key − first]. Returns the
// number of tuples, or, as soon as a cursor's keys do not ascend though they have to, kOutOfOrder. Each vector of keys
// is looked at before it tells where to write: keys in callers' hands, which stay as they are meanwhile, need no other
// check, and no other pass.
uint64_t AddToTable(const TableWindow<uint32_t>& window);
uint64_t AddToTable(const TableWindow<uint64_t>& window);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_TABLE_FOLD_KERNELS_H_
