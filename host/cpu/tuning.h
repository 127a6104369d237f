// Sizes and costs that affect speed and memory, never a result. They were measured (docs/performance.md).
#ifndef SPARSEAGG_HOST_CPU_TUNING_H_
#define SPARSEAGG_HOST_CPU_TUNING_H_

#include <cstddef>
#include <cstdint>

namespace sparseagg::cpu {

// Sanitizer builds use tiny sizes, so that the small inputs of tests cross every boundary of blocks and windows.
#ifdef SPARSEAGG_TINY_BLOCKS
inline constexpr bool kTiny = true;
#else
inline constexpr bool kTiny = false;
#endif

struct Tuning {
  // Values (tuples × row_width) of one block: few enough for threads to share the blocks evenly.
  uint64_t block_values = kTiny ? 32 : uint64_t{1} << 16;
  // Tuples of one block per cursor, at least, since every block visits every cursor.
  uint64_t block_tuples_per_cursor = kTiny ? 1 : 24;
  // Values of one block, at most, which bounds the memory of a merge.
  uint64_t max_block_values = kTiny ? 4096 : uint64_t{1} << 20;

  // Values of the accumulator table of a table fold: usually window_values, more if many cursors would find few tuples
  // in one window, up to max_window_values.
  uint64_t window_values = kTiny ? 16 : uint64_t{1} << 15;
  uint64_t max_window_values = kTiny ? 64 : uint64_t{1} << 19;
  // Tuples of one window per cursor.
  uint64_t window_tuples_per_cursor = kTiny ? 1 : 32;

  // Tuples ahead of a cursor for which memory is prefetched, and the sum over all cursors. The hardware prefetcher
  // cannot follow as many streams as there are updates. Tuples prefetched beyond a window wait in the cache for the
  // next one.
  uint64_t tuples_ahead = 256;
  uint64_t total_tuples_ahead = uint64_t{1} << 15;

  // Costs of folding a block, in nanoseconds; only their ratios matter. A visit: one cursor looks for its tuples in one
  // window. Table fold: a cost for each slot of the table and for each value added. Sort fold: a cost for each tuple.
  double visit_cost = 12;
  double table_slot_cost = 0.3;
  double table_value_cost = 1.5;
  double sort_tuple_cost = 5.5;

  // Values of one block of a sort fold, and tuples per cursor: smaller than other blocks, so that they stay in the
  // cache while they are sorted.
  uint64_t sort_values = kTiny ? 16 : uint64_t{1} << 13;
  uint64_t sort_tuples_per_cursor = kTiny ? 1 : 16;
  // Samples of keys from which the boundaries of blocks are chosen: for one block, and at least for one block of a sort
  // fold.
  uint64_t samples_per_block = kTiny ? 4 : 64;
  uint64_t samples_per_part = kTiny ? 2 : 8;

  // Tuples of an unsorted update, from which on it is put into coarse order instead of being sorted.
  uint64_t min_coarse_tuples = kTiny ? 4 : uint64_t{1} << 13;

  // Memory of pending updates from which on they are merged into the base. Every such merge reads and writes all rows
  // of the base.
  uint64_t min_pending_bytes = kTiny ? 1000 : uint64_t{64} << 20;
};

// Bytes of output from which on whole cache lines are written past the caches, which could not hold them until they are
// read.
inline constexpr size_t kStreamedBytes = kTiny ? 256 : size_t{8} << 20;

// Values that are converted to terms at a time, in folds without a kernel.
inline constexpr size_t kTermBatch = kTiny ? 8 : 1024;

// Returns: the tuning that merges use. Benchmarks and tests change it; not while a merge runs.
inline Tuning& CurrentTuning() {
  static Tuning tuning;
  return tuning;
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_TUNING_H_
