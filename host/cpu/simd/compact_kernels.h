// Kernels that read out the table of a table fold (merge/table_fold.h). See kernels.h for targets.
#ifndef SPARSEAGG_HOST_CPU_SIMD_COMPACT_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_COMPACT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/cpu/rows/count_bytes.h"
#include "host/cpu/rows/direct_output.h"

namespace sparseagg::cpu {

// A table of 64-bit accumulators, one slot a key. With counters, a slot is touched if its count is not 0; without, if
// its accumulator is not `untouched`. All columns have kVectorSlack untouched slots more.
struct SlotTable {
  void* accs = nullptr;  // double; int64_t if `fixed`
  CountBytes count_bytes = CountBytes::kNone;
  void* counts = nullptr;
  uint64_t* weights = nullptr;  // bits as in FoldedRows::weights; null: not summed
  size_t slots = 0;
  uint64_t untouched = 0;  // bits of an accumulator that no term was added to
  bool fixed = false;
};

// Moves the touched slots of a table without weights to columns, in ascending order, and resets the table:
// keys[j] = first + slot, accs[j] = accumulator, counts[j] = count. `counts` may be null.
// Returns: the number of rows.
// Requires: room for kVectorSlack rows more in the columns.
size_t Compact(const SlotTable& table, uint32_t first, uint32_t* keys, void* accs, uint32_t* counts);
size_t Compact(const SlotTable& table, uint64_t first, uint64_t* keys, void* accs, uint32_t* counts);

// The same to finished rows of direct output, in two steps, so that a thread can claim places for its rows in between.
// CountTouched returns the number of rows. CompactTo finishes and writes these `rows` rows, nothing behind them, and
// resets the table. The table may have weights.
size_t CountTouched(const SlotTable& table);
void CompactTo(const SlotTable& table, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output);
void CompactTo(const SlotTable& table, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output);

// Finishes all slots, writes them one behind another, and resets the table. An untouched slot gives value 0, count 0
// and weight 0.
void WriteAllSlots(const SlotTable& table, const DirectValues& output);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_COMPACT_KERNELS_H_
