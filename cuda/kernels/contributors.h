// Number and total weight of the contributors of each segment; our own, for CUB's reductions regroup float additions.
#ifndef SPARSEAGG_CUDA_KERNELS_CONTRIBUTORS_H_
#define SPARSEAGG_CUDA_KERNELS_CONTRIBUTORS_H_

#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"
#include "host/base/binned.h"

namespace sparseagg::cuda {

// Arguments of the kernels below, which divide the segments as FoldValues does. A column that is not needed is null,
// and so is the base's.
struct Contributors {
  Segments segments;
  uint32_t num_base = 0;
  const uint32_t* d_base_counts = nullptr;
  const void* d_base_weights = nullptr;
  Sources sources;
  bool unique = false;  // no source has a key twice
  SegmentClasses classes;
  uint32_t* d_counts = nullptr;
  WeightKind weights = WeightKind::kCounts;
  void* d_weights = nullptr;  // as `weights` says; null for kCounts

  // Returns: whether the entry is its source's first in the segment that begins at `begin`, so that it counts.
  SPARSEAGG_HD bool IsFirst(uint32_t begin, uint32_t entry, uint32_t source) const {
    return unique || entry == begin || segments.Position(entry - 1) < sources.Begin(source);
  }
  SPARSEAGG_HD bool NeedsSources() const { return !unique || d_weights != nullptr; }
};

// The sum of the weights of one segment: in float64, from left to right, from +0.0; or in bins, in any order.
struct FloatWeightSum {
  using Stored = double;
  static constexpr bool kInOrder = true;
  SPARSEAGG_HD void Add(double weight) { sum = AddRn(sum, weight); }
  SPARSEAGG_HD void Merge(Stored other) { Add(other); }
  SPARSEAGG_HD Stored Get() const { return sum; }

  double sum = 0.0;
};
struct BinnedWeightSum {
  using Stored = BinnedWeights;
  static constexpr bool kInOrder = false;
  SPARSEAGG_HD void Add(double weight) { sum.Add(weight); }
  SPARSEAGG_HD void Merge(const Stored& other) { sum.Merge(other.Sum()); }
  SPARSEAGG_HD Stored Get() const { return BinnedWeights::Of(sum); }

  WideBinnedSum sum;
};

// Sums of one segment. Counts are added in any order.
template <class WeightSum>
struct ContributorSums {
  using Stored = typename WeightSum::Stored;
  uint32_t count = 0;
  WeightSum weights;

  SPARSEAGG_HD void AddBase(const Contributors& args, uint32_t row) {
    if (args.d_counts != nullptr) count += args.d_base_counts[row];
    if (args.d_weights != nullptr) weights.Merge(static_cast<const Stored*>(args.d_base_weights)[row]);
  }
  SPARSEAGG_HD void AddSource(const Source& source) {
    ++count;
    weights.Add(source.key_weight);
  }
  SPARSEAGG_HD void Store(const Contributors& args, uint32_t segment) const {
    if (args.d_counts != nullptr) args.d_counts[segment] = count;
    if (args.d_weights != nullptr) static_cast<Stored*>(args.d_weights)[segment] = weights.Get();
  }
};

// Element-wise over segments.
template <class WeightSum>
struct CountShortSegments {
  Contributors args;

  uint64_t size() const { return args.segments.count; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const auto segment = static_cast<uint32_t>(i);
    const uint32_t begin = args.segments.Begin(segment);
    const uint32_t end = args.segments.End(segment);
    if (!args.classes.IsShort(end - begin)) return;
    ContributorSums<WeightSum> sums;
    uint32_t entry = begin;
    for (; entry < end && args.segments.Position(entry) < args.num_base; ++entry) {
      sums.AddBase(args, args.segments.Position(entry));
    }
    if (!args.NeedsSources()) {
      sums.count += end - entry;
      entry = end;
    }
    while (entry < end) {
      const uint32_t source = args.sources.Find(args.segments.Position(entry));
      sums.AddSource(args.sources.d_sources[source]);
      const uint32_t source_end = args.sources.End(source);
      do {
        ++entry;
      } while (entry < end && args.segments.Position(entry) < source_end);
    }
    sums.Store(args, segment);
  }
};

// Block kernel: a block counts one listed segment after another, medium ones with kWarpThreads threads and long ones
// with kBlockThreads. All threads find contributors and sum counts, and weights where their order does not
// matter. Where it does, one thread adds the weights, tile by tile, from shared memory.
template <class WeightSum, uint32_t kNumThreads>
struct CountListedSegments {
  static constexpr uint32_t kThreads = kNumThreads;
  static constexpr uint32_t kMinBlocks = 1;
  static constexpr uint32_t kTileEntries = 4 * kThreads;

  using Sums = ContributorSums<WeightSum>;

  struct Shared {
    double weights[2][kTileEntries];  // of the entries of a tile; ignored where is_first is 0
    uint8_t is_first[2][kTileEntries];
    Sums lanes[kThreads];
    double in_order;  // the sum of weights whose order matters
  };
  struct Private {};

  Contributors args;

  SPARSEAGG_HD const SegmentList& List() const { return args.classes.ListFor<kThreads>(); }
  uint64_t num_blocks() const { return List().NumBlocks(/*parts=*/1); }

  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    List().ForPartsOf(block.index(), /*parts=*/1, [&](uint64_t i) { Count(block, shared, List().d_segments[i]); });
  }

  template <typename Block>
  SPARSEAGG_HD void Count(Block& block, Shared& shared, uint32_t segment) const {
    const uint32_t begin = args.segments.Begin(segment);
    const uint32_t end = args.segments.End(segment);
    const uint32_t num_tiles = (end - begin + kTileEntries - 1) / kTileEntries;
    const uint32_t num_threads = block.num_threads();
    block.Phase([&](uint32_t thread) {
      shared.lanes[thread] = Sums();
      if (thread == 0) shared.in_order = 0.0;
      LoadTile(begin, end, 0, thread, num_threads, shared);
    });
    for (uint32_t tile = 0; tile < num_tiles; ++tile) {
      block.Phase([&](uint32_t thread) {
        if (tile + 1 < num_tiles) LoadTile(begin, end, tile + 1, thread, num_threads, shared);
        if (WeightSum::kInOrder && thread == 0 && args.d_weights != nullptr) AddTile(begin, end, tile, shared);
      });
    }
    for (uint32_t width = num_threads; width > 1;) {
      const uint32_t half = (width + 1) / 2;
      block.Phase([&](uint32_t thread) {
        if (thread + half >= width) return;
        const Sums& other = shared.lanes[thread + half];
        shared.lanes[thread].count += other.count;
        if constexpr (!WeightSum::kInOrder) shared.lanes[thread].weights.Merge(other.weights.Get());
      });
      width = half;
    }
    block.Phase([&](uint32_t thread) {
      if (thread != 0) return;
      Sums sums = shared.lanes[0];
      if constexpr (WeightSum::kInOrder) sums.weights.sum = shared.in_order;
      sums.Store(args, segment);
    });
  }

  SPARSEAGG_HD void LoadTile(uint32_t begin, uint32_t end, uint32_t tile, uint32_t thread, uint32_t num_threads,
                             Shared& shared) const {
    const uint32_t first = begin + tile * kTileEntries;
    const uint32_t entries = end - first < kTileEntries ? end - first : kTileEntries;
    Sums& lane = shared.lanes[thread];
    for (uint32_t i = thread; i < entries; i += num_threads) {
      const uint32_t position = args.segments.Position(first + i);
      bool is_first = true;
      double weight = 0.0;
      if (position < args.num_base) {
        lane.AddBase(args, position);
        if constexpr (WeightSum::kInOrder) {
          if (args.d_weights != nullptr) weight = static_cast<const double*>(args.d_base_weights)[position];
        }
      } else if (!args.NeedsSources()) {
        ++lane.count;
      } else {
        const uint32_t source = args.sources.Find(position);
        is_first = args.IsFirst(begin, first + i, source);
        if (is_first) {
          lane.AddSource(args.sources.d_sources[source]);
          weight = args.sources.d_sources[source].key_weight;
        }
      }
      shared.weights[tile % 2][i] = weight;
      shared.is_first[tile % 2][i] = is_first ? 1 : 0;
    }
  }

  SPARSEAGG_HD void AddTile(uint32_t begin, uint32_t end, uint32_t tile, Shared& shared) const {
    const uint32_t first = begin + tile * kTileEntries;
    const uint32_t entries = end - first < kTileEntries ? end - first : kTileEntries;
    double sum = shared.in_order;
    for (uint32_t i = 0; i < entries; ++i) {
      if (shared.is_first[tile % 2][i] != 0) sum = AddRn(sum, shared.weights[tile % 2][i]);
    }
    shared.in_order = sum;
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_CONTRIBUTORS_H_
