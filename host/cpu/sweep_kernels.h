// The inner loops of the sweep (sweeper.h), vectorised as kernels.h describes.
#ifndef SPARSEAGG_HOST_CPU_SWEEP_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SWEEP_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/cpu/cursor.h"
#include "host/cpu/plain_output.h"

namespace sparseagg::cpu {

// How many contributors a slot has had. Narrow counters leave more of the cache to the sums; a sweep takes the
// narrowest that can count its updates.
enum class CountBytes : uint8_t { kNone = 0, kOne = 1, kTwo = 2, kFour = 4 };

// A window of keys, first to last, of float updates: `columns` ≥ 1 accumulators a key, slot after slot.
template <typename Key>
struct SweepWindow {
  Cursor<Key>* cursors = nullptr;
  size_t num_cursors = 0;
  Key first = 0;
  Key last = 0;
  size_t columns = 1;
  void* table = nullptr;  // double; int64_t where `fixed`
  CountBytes count_bytes = CountBytes::kNone;
  void* counts = nullptr;   // unsigned, count_bytes wide
  size_t tuples_ahead = 0;  // how far ahead of a cursor memory is asked for
  bool fixed = false;
  double bound = 0.0;  // fixed: terms are clipped to ±bound
  double scale = 1.0;  // fixed: 2^s
};

// Adds every cursor's tuples with keys ≤ last, cursor after cursor, and moves the cursors behind them:
// table[key − first] += value · weight + 0.0, each product and sum rounded to float64; where `fixed`,
// rint(clamp(value · weight) · scale). Returns the number of tuples.
uint64_t AddToTable(const SweepWindow<uint32_t>& window);
uint64_t AddToTable(const SweepWindow<uint64_t>& window);

// A table of 64-bit accumulators. A slot is touched when its accumulator is not `untouched`; with counters, when its
// count is not 0. Accumulators and counters have kVectorSlack more slots, which nobody touches.
struct SlotTable {
  void* accs = nullptr;  // double; int64_t where `fixed`
  CountBytes count_bytes = CountBytes::kNone;
  void* counts = nullptr;
  size_t slots = 0;
  uint64_t untouched = 0;
  bool fixed = false;
};

// Moves the touched slots to columns, in order, and makes the table fresh: keys[j] = first + slot, accs[j] = the slot.
// `counts` may be null: not wanted. The outputs need kVectorSlack. Returns the number of rows.
size_t Compact(const SlotTable& table, uint32_t first, uint32_t* keys, void* accs, uint32_t* counts);
size_t Compact(const SlotTable& table, uint64_t first, uint64_t* keys, void* accs, uint32_t* counts);

// The same in two steps, so that threads may claim room in between: how many slots are touched; and to finished rows,
// `rows` of them, of which nothing behind is written.
size_t CountTouched(const SlotTable& table);
void CompactTo(const SlotTable& table, uint32_t first, size_t rows, const PlainOutput<uint32_t>& output);
void CompactTo(const SlotTable& table, uint64_t first, size_t rows, const PlainOutput<uint64_t>& output);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SWEEP_KERNELS_H_
