// Number and total weight of the contributors of each segment; our own, for weights are added in canonical order.
#ifndef SPARSEAGG_CUDA_KERNELS_CONTRIBUTORS_H_
#define SPARSEAGG_CUDA_KERNELS_CONTRIBUTORS_H_

#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

// Arguments of the kernels below, which divide the segments as FoldValues does. A column that is not needed is null,
// and so is the base's.
struct Contributors {
  Segments segments;
  uint32_t num_base = 0;
  const uint32_t* d_base_counts = nullptr;
  const double* d_base_float_weights = nullptr;
  Sources sources;
  bool unique = false;  // no source has a key twice
  SegmentClasses classes;
  uint32_t* d_counts = nullptr;
  double* d_float_weights = nullptr;  // summed in canonical order, from +0.0

  // Returns: whether the entry is its source's first in the segment that begins at `begin`, so that it counts.
  SPARSEAGG_HD bool IsFirst(uint32_t begin, uint32_t entry, uint32_t source) const {
    return unique || entry == begin || segments.Position(entry - 1) < sources.Begin(source);
  }
  SPARSEAGG_HD bool NeedsSources() const { return !unique || d_float_weights != nullptr; }
};

// Sums of one segment. Counts are added in any order, weights from left to right.
struct ContributorSums {
  uint32_t count = 0;
  double float_weight = 0.0;

  SPARSEAGG_HD void AddBase(const Contributors& args, uint32_t row) {
    if (args.d_counts != nullptr) count += args.d_base_counts[row];
    if (args.d_float_weights != nullptr) float_weight = AddRn(float_weight, args.d_base_float_weights[row]);
  }
  SPARSEAGG_HD void AddSource(const Source& source) {
    ++count;
    float_weight = AddRn(float_weight, source.key_weight);
  }
  SPARSEAGG_HD void Store(const Contributors& args, uint32_t segment) const {
    if (args.d_counts != nullptr) args.d_counts[segment] = count;
    if (args.d_float_weights != nullptr) args.d_float_weights[segment] = float_weight;
  }
};

// Element-wise over segments.
struct CountShortSegments {
  Contributors args;

  uint64_t size() const { return args.segments.count; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const auto segment = static_cast<uint32_t>(i);
    const uint32_t begin = args.segments.Begin(segment);
    const uint32_t end = args.segments.End(segment);
    if (!args.classes.IsShort(end - begin)) return;
    ContributorSums sums;
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
// with kBlockThreads. All threads find contributors and sum counts. The sum of weights has a fixed
// order, so one thread adds them, tile by tile, from shared memory.
template <uint32_t kNumThreads>
struct CountListedSegments {
  static constexpr uint32_t kThreads = kNumThreads;
  static constexpr uint32_t kMinBlocks = 1;
  static constexpr uint32_t kTileEntries = 4 * kThreads;

  struct Shared {
    double weights[2][kTileEntries];  // of the entries of a tile; ignored where is_first is 0
    uint8_t is_first[2][kTileEntries];
    ContributorSums lanes[kThreads];
    double float_weight;
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
      shared.lanes[thread] = ContributorSums();
      if (thread == 0) shared.float_weight = 0.0;
      LoadTile(begin, end, 0, thread, num_threads, shared);
    });
    for (uint32_t tile = 0; tile < num_tiles; ++tile) {
      block.Phase([&](uint32_t thread) {
        if (tile + 1 < num_tiles) LoadTile(begin, end, tile + 1, thread, num_threads, shared);
        if (thread == 0 && args.d_float_weights != nullptr) AddTile(begin, end, tile, shared);
      });
    }
    for (uint32_t width = num_threads; width > 1;) {
      const uint32_t half = (width + 1) / 2;
      block.Phase([&](uint32_t thread) {
        if (thread + half >= width) return;
        shared.lanes[thread].count += shared.lanes[thread + half].count;
      });
      width = half;
    }
    block.Phase([&](uint32_t thread) {
      if (thread != 0) return;
      ContributorSums sums = shared.lanes[0];
      sums.float_weight = shared.float_weight;
      sums.Store(args, segment);
    });
  }

  SPARSEAGG_HD void LoadTile(uint32_t begin, uint32_t end, uint32_t tile, uint32_t thread, uint32_t num_threads,
                             Shared& shared) const {
    const uint32_t first = begin + tile * kTileEntries;
    const uint32_t entries = end - first < kTileEntries ? end - first : kTileEntries;
    ContributorSums& lane = shared.lanes[thread];
    for (uint32_t i = thread; i < entries; i += num_threads) {
      const uint32_t position = args.segments.Position(first + i);
      bool is_first = true;
      double weight = 0.0;
      if (position < args.num_base) {
        lane.AddBase(args, position);
        if (args.d_float_weights != nullptr) weight = args.d_base_float_weights[position];
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
    double sum = shared.float_weight;
    for (uint32_t i = 0; i < entries; ++i) {
      if (shared.is_first[tile % 2][i] != 0) sum = AddRn(sum, shared.weights[tile % 2][i]);
    }
    shared.float_weight = sum;
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_CONTRIBUTORS_H_
