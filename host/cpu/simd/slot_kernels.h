// The inner loop of the slot sort (slot_sort.h), vectorised as kernels.h describes.
#ifndef SPARSEAGG_HOST_CPU_SIMD_SLOT_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_SLOT_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace sparseagg::cpu {

// Buckets of kBucketSlots slots each, kGroupBuckets of them interleaved: slot s of bucket b is word
// (b / kGroupBuckets) · kGroupSlots + s · kGroupBuckets + b % kGroupBuckets. So a vector holds one slot of each bucket
// of a group, and a sorting network sorts all of them at once, with one minimum and one maximum a comparator.
inline constexpr size_t kGroupBuckets = 8;
inline constexpr size_t kBucketSlots = 16;
inline constexpr size_t kGroupSlots = kGroupBuckets * kBucketSlots;

// What slot s holds while it is free: larger than any tuple, and no two of a bucket have the same upper half.
constexpr uint64_t FreeSlot(size_t s) { return (uint64_t{0xffffffff} - s) << 32; }
inline constexpr uint64_t kMaxSlotOffset = 0xffffffff - kBucketSlots;

// Set in what `next` has for a bucket that could not take everything.
inline constexpr uint32_t kSpilled = uint32_t{1} << 31;

// Whether this machine's vectors hold a group's slots side by side. Else the following is not to be called.
bool HasSlotKernel();

struct SlotGroups {
  uint64_t* slots = nullptr;
  const uint32_t* next = nullptr;  // for each bucket, the word of its next free slot, or of the slot behind its last
  bool stable = false;             // no two words are equal in their upper halves, or the lower ones are ascending
};

// Writes the words of the groups [begin, end), sorted, to out + written and on, moves `written`, and frees their slots.
// Stops before a group with a bucket that has spilled or, unless `stable`, has three words that are equal in their
// upper halves (the order of two may change), and returns it, or `end`. `out` needs room for kBucketSlots words more.
size_t SortGroups(const SlotGroups& groups, size_t begin, size_t end, uint64_t* out, size_t& written);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_SLOT_KERNELS_H_
