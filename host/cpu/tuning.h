// Sizes that trade speed only; no result depends on them.
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

// Values (tuples × width) that one block of a merge should hold: large enough that a cursor's visit is worth its cost,
// small enough that table and terms stay in the second-level cache.
inline constexpr uint64_t kBlockValues = kTiny ? 32 : uint64_t{1} << 15;
// Tuples that a block should hold per cursor, since every block visits every cursor.
inline constexpr uint64_t kBlockTuplesPerCursor = kTiny ? 1 : 16;
// Values that a block may hold in any case, which bounds the memory of a merge.
inline constexpr uint64_t kMaxBlockValues = kTiny ? 4096 : uint64_t{1} << 20;
// Values of the accumulator table of one sweep window.
inline constexpr uint64_t kWindowValues = kTiny ? 64 : uint64_t{1} << 17;
// A block is swept when its keys span at most this many table entries per tuple, else gathered and sorted.
inline constexpr uint64_t kSweepSpanPerTuple = kTiny ? 4 : 24;
// Samples a block from which the splitters are chosen.
inline constexpr uint64_t kSamplesPerBlock = kTiny ? 4 : 32;
// Values converted to terms at a time.
inline constexpr size_t kTermBatch = kTiny ? 8 : 1024;
// Memory of waiting updates below which on-arrival merging waits for more.
inline constexpr size_t kMinPendingBytes = kTiny ? 1000 : size_t{16} << 20;

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_TUNING_H_
