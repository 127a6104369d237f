// Kernel of the bucket sort (merge/bucket_sort.h): sorting networks over interleaved buckets. See kernels.h for
// targets.
#ifndef SPARSEAGG_HOST_CPU_SIMD_BUCKET_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_BUCKET_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace sparseagg::cpu {

// A bucket has kBucketCells cells; the cells of kGroupBuckets buckets, a group, are interleaved. Cell s of bucket b is
// word
//
//   (b / kGroupBuckets) · kGroupCells + s · kGroupBuckets + b % kGroupBuckets
//
// So a vector holds cell s of all eight buckets of a group. A sorting network, which compares fixed pairs of cells,
// sorts the eight buckets at once; each comparator is one vector minimum and one vector maximum.
inline constexpr size_t kGroupBuckets = 8;
inline constexpr size_t kBucketCells = 16;
inline constexpr size_t kGroupCells = kGroupBuckets * kBucketCells;

// Returns: the word in cell s while the cell is free. It is larger than any tuple, so that free cells are sorted to the
// end, and the upper halves of a bucket's free cells differ, so that they do not look like equal keys.
constexpr uint64_t FreeCell(size_t s) { return (uint64_t{0xffffffff} - s) << 32; }
inline constexpr uint64_t kMaxBucketOffset = 0xffffffff - kBucketCells;

// Flag in BucketGroups::next: the bucket was full when another tuple came.
inline constexpr uint32_t kOverflowed = uint32_t{1} << 31;

// Returns: whether the SIMD target has 512-bit vectors. Others have shorter vectors and no instruction for the minimum
// of 64-bit integers; a radix sort is faster there.
bool HasBucketKernel();

struct BucketGroups {
  uint64_t* cells = nullptr;
  const uint32_t* next = nullptr;  // for each bucket: the word of its next free cell, or of the cell behind its last
  bool stable = false;             // among equal upper halves, the lower halves came in ascending order
};

// Sorts the words of the groups [begin, end), writes them to `out` from `written` on, advances `written`, and frees the
// cells. Stops before a group with an overflowed bucket. Unless `stable`, it also stops before a group in which three
// words of a bucket have equal upper halves: a network would not keep their order. (Two may change places.)
// Returns: the group it stopped at, or `end`.
// Requires: HasBucketKernel(); room for kBucketCells words more at `out`.
size_t SortGroups(const BucketGroups& groups, size_t begin, size_t end, uint64_t* out, size_t& written);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_BUCKET_KERNELS_H_
