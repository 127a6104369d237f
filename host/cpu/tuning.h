// Sizes and costs that trade speed only; no result depends on them. `make tune` measures them on the machine at hand
// and prints what it would change.
#ifndef SPARSEAGG_HOST_CPU_TUNING_H_
#define SPARSEAGG_HOST_CPU_TUNING_H_

#include <cstddef>
#include <cstdint>

namespace sparseagg::cpu {

// Tests also run with tiny sizes, so that small inputs meet every boundary and every merge.
#ifdef SPARSEAGG_TINY_BLOCKS
inline constexpr bool kTiny = true;
#else
inline constexpr bool kTiny = false;
#endif

struct Tuning {
  // Values (tuples × width) that one block of a merge should hold: enough for the threads to share blocks evenly.
  uint64_t block_values = kTiny ? 32 : uint64_t{1} << 16;
  // Tuples that a block should hold per cursor, since every block visits every cursor.
  uint64_t block_tuples_per_cursor = kTiny ? 1 : 24;
  // Values that a block may hold in any case, which bounds the memory of a merge.
  uint64_t max_block_values = kTiny ? 4096 : uint64_t{1} << 20;

  // Values of the accumulator table of one sweep window: at least, and, where many cursors would find too little in a
  // window, at most.
  uint64_t window_values = kTiny ? 16 : uint64_t{1} << 15;
  uint64_t max_window_values = kTiny ? 64 : uint64_t{1} << 19;
  // Tuples that a window should hold per cursor.
  uint64_t window_tuples_per_cursor = kTiny ? 1 : 32;

  // How many tuples ahead of a cursor a sweep asks for memory, and of all cursors together. There are more updates than
  // the hardware can follow; what is asked for beyond a window waits in the cache for the next one.
  uint64_t tuples_ahead = 256;
  uint64_t total_tuples_ahead = uint64_t{1} << 15;

  // What the two ways to fold a block cost, in nanoseconds; only the ratios matter. A visit is one cursor looking for
  // its tuples in one window.
  double visit_cost = 12;
  double table_slot_cost = 0.3;
  double table_value_cost = 1.5;
  double sort_tuple_cost = 5.5;

  // Values that one gathered block should hold, and tuples per cursor.
  uint64_t sort_values = kTiny ? 16 : uint64_t{1} << 13;
  uint64_t sort_tuples_per_cursor = kTiny ? 1 : 16;
  // Samples a block, and at least a part of one, from which the splitters are chosen.
  uint64_t samples_per_block = kTiny ? 4 : 64;
  uint64_t samples_per_part = kTiny ? 2 : 8;

  // Tuples from which on an update that arrives unsorted is put into coarse order only.
  uint64_t min_coarse_tuples = kTiny ? 4 : uint64_t{1} << 13;

  // Memory of waiting updates below which merging on arrival waits for more: every merge reads and writes all rows of
  // the one before.
  uint64_t min_pending_bytes = kTiny ? 1000 : uint64_t{64} << 20;
};

// Output from which on what is written in whole lines goes past the caches, which do not hold it until it is read.
inline constexpr size_t kStreamedBytes = kTiny ? 256 : size_t{8} << 20;

// Values converted to terms at a time, where no kernel does it all at once.
inline constexpr size_t kTermBatch = kTiny ? 8 : 1024;

// What merges go by. Not to be changed while one runs.
inline Tuning& CurrentTuning() {
  static Tuning tuning;
  return tuning;
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_TUNING_H_
