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
inline constexpr uint64_t kBlockValues = kTiny ? 32 : uint64_t{1} << 16;
// Tuples that a block should hold per cursor, since every block visits every cursor.
inline constexpr uint64_t kBlockTuplesPerCursor = kTiny ? 1 : 32;
// Values that a block may hold in any case, which bounds the memory of a merge.
inline constexpr uint64_t kMaxBlockValues = kTiny ? 4096 : uint64_t{1} << 20;
// Values of the accumulator table of one sweep window: at least, and, where many cursors would find too little in a
// window, at most.
inline constexpr uint64_t kWindowValues = kTiny ? 16 : uint64_t{1} << 15;
inline constexpr uint64_t kMaxWindowValues = kTiny ? 64 : uint64_t{1} << 18;
// Tuples that a window should hold per cursor.
inline constexpr uint64_t kWindowTuplesPerCursor = kTiny ? 1 : 16;

// What the two ways to fold a block cost, in cycles. A visit is one cursor looking for its tuples in one window.
inline constexpr uint64_t kVisitCost = 40;
inline constexpr uint64_t kSweepSlotCost = 1;
inline constexpr uint64_t kSweepTupleCost = 5;
inline constexpr uint64_t kGatherTupleCost = 25;

// Values that one gathered block should hold, and tuples per cursor.
inline constexpr uint64_t kGatherValues = kTiny ? 16 : uint64_t{1} << 14;
inline constexpr uint64_t kGatherTuplesPerCursor = kTiny ? 1 : 32;
// Samples a block from which the splitters are chosen.
inline constexpr uint64_t kSamplesPerBlock = kTiny ? 4 : 64;
inline constexpr uint64_t kSamplesPerPart = kTiny ? 2 : 8;
// Values converted to terms at a time.
inline constexpr size_t kTermBatch = kTiny ? 8 : 1024;
// Memory of waiting updates below which on-arrival merging waits for more.
inline constexpr size_t kMinPendingBytes = kTiny ? 1000 : size_t{16} << 20;

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_TUNING_H_
