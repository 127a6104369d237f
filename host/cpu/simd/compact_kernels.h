// The inner loops that empty the table of a sweep (sweeper.h), vectorised as kernels.h describes.
#ifndef SPARSEAGG_HOST_CPU_SIMD_COMPACT_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_COMPACT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/cpu/rows/count_bytes.h"
#include "host/cpu/rows/direct_output.h"

namespace sparseagg::cpu {

// A table of 64-bit accumulators. A slot is touched when its accumulator is not `untouched`; with counters, when its
// count is not 0. Accumulators, counters and weights have kVectorSlack more slots, which nobody touches.
struct SlotTable {
  void* accs = nullptr;  // double; int64_t where `fixed`
  CountBytes count_bytes = CountBytes::kNone;
  void* counts = nullptr;
  uint64_t* weights = nullptr;  // as of FoldedRows; null: no sums of weights
  size_t slots = 0;
  uint64_t untouched = 0;
  bool fixed = false;
};

// Moves the touched slots of a table without weights to columns, in order, and makes it fresh: keys[j] = first + slot,
// accs[j] = the slot. `counts` may be null: not wanted. The outputs need kVectorSlack. Returns the number of rows.
size_t Compact(const SlotTable& table, uint32_t first, uint32_t* keys, void* accs, uint32_t* counts);
size_t Compact(const SlotTable& table, uint64_t first, uint64_t* keys, void* accs, uint32_t* counts);

// The same in two steps, so that threads may claim room in between: how many slots are touched; and to finished rows,
// `rows` of them, of which nothing behind is written. The table may have weights.
size_t CountTouched(const SlotTable& table);
void CompactTo(const SlotTable& table, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output);
void CompactTo(const SlotTable& table, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output);

// Finishes all slots, touched or not, one behind another, and makes the table fresh: what is untouched gives 0, no
// contributors and no weight.
void SpreadTo(const SlotTable& table, const DirectValues& output);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_COMPACT_KERNELS_H_
