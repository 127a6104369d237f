// Segments (runs of equal keys among sorted entries), and the sources of tuples.
#ifndef SPARSEAGG_CUDA_KERNELS_SEGMENTS_H_
#define SPARSEAGG_CUDA_KERNELS_SEGMENTS_H_

#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/number.h"

namespace sparseagg::cuda {

// A batch is a sequence of entries, addressed by position (32 bits): first the rows of earlier results (`num_base` of
// them), then the tuples of its sources, source after source in canonical order. After a stable sort by key the
// positions of a segment ascend: base rows come first, and then each source's tuples, in order of occurrence.

// How the weights of a key's contributors are summed.
enum class WeightKind : uint8_t {
  kCounts,  // uniform: they add up to the number of contributors
  kFloat,   // double
  kBinned,  // BinnedWeights
};

// Weights of one submission of a batch, or of a part of one.
struct Source {
  double factor = 1.0;         // of float values, before the weight
  double weight = 1.0;         // of float values; 1 for MIN and MAX
  int64_t integer_weight = 1;  // factor of integer values
  double key_weight = 1.0;     // term of each of its keys in sums of weights
};

struct Sources {
  const uint32_t* d_begin = nullptr;  // first tuple of each source, and the number of tuples: count + 1 elements
  const Source* d_sources = nullptr;
  uint32_t count = 0;
  uint32_t first_position = 0;  // of tuple 0: the number of base rows

  // Positions of a source's tuples.
  SPARSEAGG_HD uint32_t Begin(uint32_t source) const { return first_position + d_begin[source]; }
  SPARSEAGG_HD uint32_t End(uint32_t source) const { return Begin(source + 1); }

  // Returns: the source of the tuple at `position`, which is the last source that begins at or before it.
  SPARSEAGG_HD uint32_t Find(uint32_t position) const {
    const uint32_t tuple = position - first_position;
    uint32_t low = 0;
    uint32_t high = count;
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      if (d_begin[middle] <= tuple) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

struct Segments {
  const uint32_t* d_positions = nullptr;  // num_entries, in ascending order of key; null: entry i is position i
  const uint32_t* d_begin = nullptr;      // count; null: every entry is a segment of its own
  uint32_t count = 0;
  uint32_t num_entries = 0;

  SPARSEAGG_HD uint32_t Begin(uint32_t segment) const { return d_begin == nullptr ? segment : d_begin[segment]; }
  SPARSEAGG_HD uint32_t End(uint32_t segment) const { return segment + 1 == count ? num_entries : Begin(segment + 1); }
  SPARSEAGG_HD uint32_t Position(uint32_t entry) const { return d_positions == nullptr ? entry : d_positions[entry]; }
};

// Some segments, in any order, each of which a thread block folds. Only the device knows how many there are, so that
// the host need not wait for their number.
struct SegmentList {
  uint32_t max_count = 0;          // that could be; 0: there are none, and the pointers are null
  uint32_t* d_count = nullptr;     // 0 before GatherSegments
  uint32_t* d_segments = nullptr;  // room for max_count

  // Thread blocks for `parts` parts of each segment: few, so that few start in vain if there are fewer segments than
  // there could be.
  SPARSEAGG_HD uint64_t NumBlocks(uint32_t parts) const {
    constexpr uint64_t kMaxBlocks = 4096;
    const uint64_t all = uint64_t{max_count} * parts;
    return all < kMaxBlocks ? all : kMaxBlocks;
  }
  // Calls body(i) for every so many of the parts, of which part i is one of segment d_segments[i / parts].
  template <typename Body>
  SPARSEAGG_HD void ForPartsOf(uint64_t block, uint32_t parts, Body&& body) const {
    // Computed anew each time: kept in registers, the bounds would cost more than they do here.
    for (uint64_t i = block; i < uint64_t{*d_count} * parts; i += NumBlocks(parts)) body(i);
  }
  SPARSEAGG_HD void Append(uint32_t segment) const { d_segments[AtomicAdd(d_count, 1)] = segment; }
};

// The classes of segments by length: one thread folds all entries of a short segment, a block of one warp those of a
// medium segment, a block of kBlockThreads those of a long one. GatherSegments lists the latter two.
struct SegmentClasses {
  uint32_t max_short = ~0u;   // most entries of a short segment
  uint32_t max_medium = ~0u;  // and of a medium one; at least max_short
  SegmentList medium;
  SegmentList longs;

  SPARSEAGG_HD bool IsShort(uint32_t num_entries) const { return num_entries <= max_short; }
  SPARSEAGG_HD bool IsLong(uint32_t num_entries) const { return num_entries > max_medium; }
  // The segments for blocks of kThreads threads.
  template <uint32_t kThreads>
  SPARSEAGG_HD const SegmentList& ListFor() const {
    static_assert(kThreads == kWarpThreads || kThreads == kBlockThreads);
    return kThreads == kWarpThreads ? medium : longs;
  }
};

// Element-wise kernels: operator()(i) for all i in [0, size()), in any order.

// Writes the keys, or positions, first, first + 1, ….
struct ExpandRun {
  void* d_keys = nullptr;
  uint32_t key_bytes = 4;
  uint64_t first = 0;
  uint64_t count = 0;

  uint64_t size() const { return count; }
  SPARSEAGG_HD void operator()(uint64_t i) const { StoreKey(d_keys, key_bytes, i, first + i); }
};

// Writes the key of every segment, and the number of its contributors, and lists the medium and the long ones.
struct GatherSegments {
  const void* d_sorted_keys = nullptr;
  uint32_t key_bytes = 4;
  Segments segments;
  void* d_keys = nullptr;
  SegmentClasses classes;
  uint32_t* d_counts = nullptr;  // null: not needed, or a source may have a key twice (FoldKind::kCountSources)
  uint32_t num_base = 0;
  const uint32_t* d_base_counts = nullptr;

  uint64_t size() const { return segments.count; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const auto segment = static_cast<uint32_t>(i);
    const uint32_t begin = segments.Begin(segment);
    StoreKey(d_keys, key_bytes, i, LoadKey(d_sorted_keys, key_bytes, begin));
    const uint32_t num_entries = segments.End(segment) - begin;
    if (d_counts != nullptr) {
      uint32_t count = num_entries;
      for (uint32_t n = 0; n < num_entries && num_base > 0 && segments.Position(begin + n) < num_base; ++n) {
        count += d_base_counts[segments.Position(begin + n)] - 1;
      }
      d_counts[i] = count;
    }
    if (classes.IsShort(num_entries)) return;
    (classes.IsLong(num_entries) ? classes.longs : classes.medium).Append(segment);
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_SEGMENTS_H_
