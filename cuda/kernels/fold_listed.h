// The segmented fold of the medium and the long segments (segments.h), by thread blocks; our own, as fold_values.h is.
#ifndef SPARSEAGG_CUDA_KERNELS_FOLD_LISTED_H_
#define SPARSEAGG_CUDA_KERNELS_FOLD_LISTED_H_

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/fold_values.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

// Most columns of one part.
inline constexpr uint32_t kMaxGroupColumns = 32;

// Block kernel: folds the segments of one SegmentList, medium ones with a warp a block and long ones with
// kBlockThreads. A block takes parts in turn; a part is up to kMaxGroup columns of one segment. A single thread would
// wait for one memory access after another, for example at a key that every client has. The two bodies:
//
//   in order     Float64 terms are added in order, by one thread for each column. Meanwhile all threads load the next
//                tile of terms into shared memory.
//   any order    Each lane looks at every num_lanes-th entry, and folds the base row or the whole source that begins
//                there. The lanes' accumulators are combined as a tree.
//
// A block of one warp takes less than 6 KiB of shared memory, so this does not limit the blocks on a multiprocessor.
template <typename Fold, uint32_t kNumThreads>
struct FoldListedSegments {
  static constexpr uint32_t kThreads = kNumThreads;
  static constexpr uint32_t kMinBlocks = 1;
  static constexpr uint32_t kMaxGroup = kMaxGroupColumns;
  static constexpr bool kOfSources = IsOfSources(Fold::kKind);
  using Acc = typename Fold::Acc;

  FoldValues args;

  SPARSEAGG_HD const SegmentList& List() const { return args.classes.ListFor<kThreads>(); }
  SPARSEAGG_HD uint32_t Group() const { return args.columns < kMaxGroup ? args.columns : kMaxGroup; }
  SPARSEAGG_HD uint32_t NumGroups() const { return (args.columns + Group() - 1) / Group(); }
  uint64_t num_blocks() const { return List().NumBlocks(NumGroups()); }

  // What a block folds at a time.
  struct Part {
    uint32_t segment;
    uint32_t begin;
    uint32_t end;
    uint32_t column;   // the first
    uint32_t columns;  // how many
  };
  SPARSEAGG_HD Part PartAt(uint64_t index) const {
    Part part;
    part.segment = List().d_segments[index / NumGroups()];
    part.begin = args.segments.Begin(part.segment);
    part.end = args.segments.End(part.segment);
    part.column = static_cast<uint32_t>(index % NumGroups()) * Group();
    part.columns = args.columns - part.column < Group() ? args.columns - part.column : Group();
    return part;
  }
  // Returns: whether the tuple at `entry` is its source's first in the part.
  SPARSEAGG_HD bool IsFirst(const Part& part, uint32_t entry, uint32_t source) const {
    return entry == part.begin || args.segments.Position(entry - 1) < args.sources.Begin(source);
  }
  SPARSEAGG_HD void Store(const Part& part, uint32_t c, const Acc& acc) const {
    args.rows.Store<Fold, 1>(part.segment, uint64_t{part.segment} * args.columns + part.column + c, {acc});
  }

  // ---- in order ----

  static constexpr uint32_t kOwnValues = 4;  // that a thread loads of a tile
  static constexpr uint32_t kTileValues = kOwnValues * kThreads;
  static constexpr uint32_t kIsTerm = 0xffffffffu;
  static constexpr uint32_t kNobody = 0xfffffffeu;
  static_assert(kThreads >= kMaxGroup, "a thread adds one column");

  // State of a column's fold between tiles.
  struct State {
    double acc;
    double value;     // sum so far of the current source's duplicates
    uint32_t source;  // the current source, or kNobody
  };
  struct InOrderShared {
    double values[2][kTileValues];     // entries × columns: terms, or values to be summed by source first
    uint32_t sources[2][kTileValues];  // of each entry, kIsTerm for terms
    State states[kMaxGroup];
  };
  static_assert(kThreads > kWarpThreads || sizeof(InOrderShared) <= 6 << 10);
  // Entries of a part that are in shared memory at a time.
  struct Tile {
    uint32_t first;
    uint32_t entries;
  };
  SPARSEAGG_HD static Tile TileAt(const Part& part, uint32_t tile) {
    const uint32_t tile_entries = kTileValues / part.columns;
    const uint32_t first = part.begin + tile * tile_entries;
    const uint32_t left = part.end - first;
    return {first, left < tile_entries ? left : tile_entries};
  }

  // A thread's values of a tile, on the way to shared memory.
  struct OwnValues {
    uint32_t positions[kOwnValues];
    uint64_t bits[kOwnValues];
  };

  template <typename Block>
  SPARSEAGG_HD void RunInOrder(Block& block, InOrderShared& shared, const Part& part) const {
    const uint32_t tile_entries = kTileValues / part.columns;
    const uint32_t num_tiles = (part.end - part.begin + tile_entries - 1) / tile_entries;
    block.Phase([&](uint32_t thread) {
      if (thread < part.columns) shared.states[thread] = {Fold::Start(), Fold::Zero(), kNobody};
      const Tile first = TileAt(part, 0);
      Place(part, first, thread, Load(part, first, thread), shared.values[0], shared.sources[0]);
    });
    for (uint32_t i = 0; i < num_tiles; ++i) {
      block.Phase([&](uint32_t thread) {
        // The next tile is on its way from memory while this one is folded.
        const bool has_next = i + 1 < num_tiles;
        const Tile next = has_next ? TileAt(part, i + 1) : Tile{part.end, 0};
        const OwnValues own = Load(part, next, thread);
        if (thread < part.columns) FoldTile(part, TileAt(part, i), i % 2, thread, shared);
        const uint32_t other = (i + 1) % 2;
        Place(part, next, thread, own, shared.values[other], shared.sources[other]);
      });
    }
    block.Phase([&](uint32_t thread) {
      if (thread >= part.columns) return;
      Flush(shared.states[thread]);
      Store(part, thread, shared.states[thread].acc);
    });
  }

  SPARSEAGG_HD OwnValues Load(const Part& part, const Tile& tile, uint32_t thread) const {
    OwnValues own = {};
    const uint32_t count = tile.entries * part.columns;
    SPARSEAGG_UNROLL
    for (uint32_t j = 0; j < kOwnValues; ++j) {
      const uint32_t i = thread + j * kThreads;
      if (i < count) own.positions[j] = args.segments.Position(tile.first + i / part.columns);
    }
    SPARSEAGG_UNROLL
    for (uint32_t j = 0; j < kOwnValues; ++j) {
      const uint32_t i = thread + j * kThreads;
      if (i >= count) continue;
      const uint32_t column = part.column + i % part.columns;
      const uint32_t position = own.positions[j];
      if (position < args.num_base) {
        own.bits[j] = LoadBits(args.base.d_accs, DType::kFloat64, uint64_t{position} * args.columns + column);
      } else if (!kOfSources) {
        own.bits[j] = LoadBits(args.d_values, args.type, uint64_t{position - args.num_base} * args.columns + column);
      }
    }
    return own;
  }

  SPARSEAGG_HD void Place(const Part& part, const Tile& tile, uint32_t thread, const OwnValues& own, double* values,
                          uint32_t* sources) const {
    const uint32_t count = tile.entries * part.columns;
    SPARSEAGG_UNROLL
    for (uint32_t j = 0; j < kOwnValues; ++j) {
      const uint32_t i = thread + j * kThreads;
      if (i >= count) continue;
      const uint32_t position = own.positions[j];
      uint32_t source = kIsTerm;
      if (position < args.num_base) {
        values[i] = BitsAs<double>(own.bits[j]);
      } else if (kOfSources) {  // the term at the source's first entry, and 0, which changes no sum, at the others
        const uint32_t owner = args.sources.Find(position);
        values[i] =
            args.unique || IsFirst(part, tile.first + i, owner) ? Fold::Term(0.0, args.sources.d_sources[owner]) : 0.0;
      } else {
        const double value = Fold::Of(args.type, own.bits[j]);
        if (args.unique) {
          values[i] = Fold::Term(Fold::Plus(Fold::Zero(), value), SourceOf(args, position));
        } else {
          values[i] = value;
          source = args.sources.Find(position);
        }
      }
      if (i % part.columns == 0) sources[i / part.columns] = source;
    }
  }

  SPARSEAGG_HD void FoldTile(const Part& part, const Tile& tile, uint32_t half, uint32_t c,
                             InOrderShared& shared) const {
    const double* values = shared.values[half] + c;
    const uint32_t* sources = shared.sources[half];
    State state = shared.states[c];
    if (args.unique || kOfSources) {  // terms only: without a branch between them, additions follow one another at once
      for (uint32_t entry = 0; entry < tile.entries; ++entry) {
        state.acc = Fold::Combine(state.acc, values[entry * part.columns]);
      }
      shared.states[c].acc = state.acc;
      return;
    }
    for (uint32_t entry = 0; entry < tile.entries; ++entry) {
      const double value = values[entry * part.columns];
      if (sources[entry] == kIsTerm) {
        state.acc = Fold::Combine(state.acc, value);
        continue;
      }
      if (sources[entry] != state.source) {
        Flush(state);
        state.source = sources[entry];
        state.value = Fold::Zero();
      }
      state.value = Fold::Plus(state.value, value);
    }
    shared.states[c] = state;
  }

  // Adds the term of the current source, whose duplicates have all been folded.
  SPARSEAGG_HD void Flush(State& state) const {
    if (state.source == kNobody) return;
    state.acc = Fold::Combine(state.acc, Fold::Term(state.value, args.sources.d_sources[state.source]));
  }

  // ---- any order ----

  struct AnyOrderShared {
    Acc accs[kThreads];
  };

  template <typename Block>
  SPARSEAGG_HD void RunAnyOrder(Block& block, AnyOrderShared& shared, const Part& part) const {
    const uint32_t num_lanes = kThreads / part.columns;
    block.Phase([&](uint32_t thread) {
      const uint32_t lane = thread / part.columns;
      if (lane < num_lanes) shared.accs[thread] = FoldLane(part, lane, num_lanes, part.column + thread % part.columns);
    });
    for (uint32_t width = num_lanes; width > 1;) {
      const uint32_t half = (width + 1) / 2;
      block.Phase([&](uint32_t thread) {
        const uint32_t lane = thread / part.columns;
        if (lane + half < width) {
          shared.accs[thread] = Fold::Combine(shared.accs[thread], shared.accs[thread + half * part.columns]);
        }
      });
      width = half;
    }
    block.Phase([&](uint32_t thread) {
      if (thread < part.columns) Store(part, thread, shared.accs[thread]);
    });
  }

  // Folds the base rows at entries lane, lane + num_lanes, … and the sources whose first entry of the segment is there.
  SPARSEAGG_HD Acc FoldLane(const Part& part, uint32_t lane, uint32_t num_lanes, uint32_t column) const {
    if (args.unique) return FoldSegment<Fold, 1>(args, part.begin + lane, part.end, num_lanes, column).values[0];
    Acc acc = Fold::Start();
    // entry + num_lanes does not wrap around: a merge has fewer than 2^32 − kBlockThreads entries (Merger::StartSort).
    for (uint32_t entry = part.begin + lane; entry < part.end; entry += num_lanes) {
      const uint32_t position = args.segments.Position(entry);
      uint32_t end = entry + 1;
      if (position >= args.num_base) {
        const uint32_t source = args.sources.Find(position);
        if (!IsFirst(part, entry, source)) continue;
        if (kOfSources) {
          acc = Fold::Combine(acc, Fold::Term(0.0, args.sources.d_sources[source]));
          continue;
        }
        const uint32_t source_end = args.sources.End(source);
        while (end < part.end && args.segments.Position(end) < source_end) ++end;
      }
      acc = Fold::Combine(acc, FoldSegment<Fold, 1>(args, entry, end, /*stride=*/1, column).values[0]);
    }
    return acc;
  }

  struct Private {};
  using Shared = std::conditional_t<Fold::kInOrder, InOrderShared, AnyOrderShared>;

  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    List().ForPartsOf(block.index(), NumGroups(), [&](uint64_t i) {
      if constexpr (Fold::kInOrder) {
        RunInOrder(block, shared, PartAt(i));
      } else {
        RunAnyOrder(block, shared, PartAt(i));
      }
    });
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_FOLD_LISTED_H_
