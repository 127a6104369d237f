// The segmented fold: one accumulator per segment and column.
#ifndef SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_
#define SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

// Most columns of a row that one block folds.
inline constexpr uint32_t kMaxGroupColumns = 32;

// Arguments of the kernels below. FoldListedSegments folds the medium and the long segments, FoldShortSegments the
// others. Arrays are aligned to 16 bytes.
struct FoldValues {
  FoldKind kind = FoldKind::kSumFloat;
  Segments segments;
  uint32_t columns = 1;
  uint32_t num_base = 0;              // positions below are base rows
  const void* d_base_accs = nullptr;  // num_base × columns of the fold's Acc
  const void* d_values = nullptr;     // of the tuples, × columns of `type`
  Number type = Number::kFloat32;
  Sources sources;
  bool unique = false;   // no source has a key twice
  bool uniform = false;  // weights are all 1 or do not matter; if `unique` too, sources need not be looked up
  TermScale scale;
  SegmentClasses classes;
  void* d_accs = nullptr;  // segments × columns of Acc: the result
};

// Returns: the source of a tuple, or a default source if weights do not matter.
SPARSEAGG_HD inline Source SourceOf(const FoldValues& args, uint32_t position) {
  return args.uniform ? Source() : args.sources.d_sources[args.sources.Find(position)];
}

// The values of a tuple in one pack of columns: bits of one value, or 16 bytes that are loaded at once.
template <typename Fold, uint32_t kColumns>
struct TupleValues {
  Pack<uint64_t, 2> bits;

  SPARSEAGG_HD static TupleValues Load(const FoldValues& args, uint64_t pack) {
    return {static_cast<const Pack<uint64_t, 2>*>(args.d_values)[pack]};
  }
  // The size of a value tells its type, unless it is 2 bytes, so that the compiler leaves out the other types.
  SPARSEAGG_HD typename Fold::Value At(const FoldValues& args, uint32_t c) const {
    return Fold::Of(kColumns == 8 ? args.type : Fold::TypeOf(16 / kColumns), BitsIn<kColumns>(bits, c));
  }
};
template <typename Fold>
struct TupleValues<Fold, 1> {
  uint64_t bits;

  SPARSEAGG_HD static TupleValues Load(const FoldValues& args, uint64_t i) {
    return {LoadBits(args.d_values, args.type, i)};
  }
  SPARSEAGG_HD typename Fold::Value At(const FoldValues& args, uint32_t) const { return Fold::Of(args.type, bits); }
};

// Folds, from left to right, every `stride`-th of the entries [begin, end) of one segment, at one pack of kColumns
// columns: `pack` of args.columns / kColumns. Requires: stride 1, or `args.unique`.
template <typename Fold, uint32_t kColumns>
SPARSEAGG_HD Pack<typename Fold::Acc, kColumns> FoldSegment(const FoldValues& args, uint32_t begin, uint32_t end,
                                                            uint32_t stride, uint32_t pack) {
  using Accs = Pack<typename Fold::Acc, kColumns>;
  using Values = TupleValues<Fold, kColumns>;
  // Entries of which a thread loads the values before it folds them, so that the memory always has work.
  constexpr uint32_t kAhead = 2;
  const uint64_t packs = args.columns / kColumns;
  Accs accs;
  SPARSEAGG_UNROLL
  for (uint32_t c = 0; c < kColumns; ++c) accs.values[c] = Fold::Start();
  uint32_t entry = begin;
  uint32_t left = begin < end ? (end - begin - 1) / stride + 1 : 0;
  for (; left > 0 && args.segments.Position(entry) < args.num_base; --left, entry += stride) {
    const Accs base = static_cast<const Accs*>(args.d_base_accs)[args.segments.Position(entry) * packs + pack];
    SPARSEAGG_UNROLL
    for (uint32_t c = 0; c < kColumns; ++c) accs.values[c] = Fold::Combine(accs.values[c], base.values[c]);
  }
  const auto load = [&](uint32_t position) { return Values::Load(args, (position - args.num_base) * packs + pack); };
  const auto add = [&](const typename Fold::Value(&sums)[kColumns], const Source& source) {
    SPARSEAGG_UNROLL
    for (uint32_t c = 0; c < kColumns; ++c) accs.values[c] = Fold::Add(accs.values[c], sums[c], source, args.scale);
  };
  if (args.unique) {
    while (left > 0) {
      const uint32_t count = left < kAhead ? left : kAhead;
      uint32_t positions[kAhead];
      Values values[kAhead];
      SPARSEAGG_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) {
        if (i < count) positions[i] = args.segments.Position(entry + i * stride);
      }
      SPARSEAGG_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) {
        if (i < count) values[i] = load(positions[i]);
      }
      SPARSEAGG_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) {
        if (i >= count) continue;
        typename Fold::Value sums[kColumns];
        SPARSEAGG_UNROLL
        for (uint32_t c = 0; c < kColumns; ++c) sums[c] = Fold::Plus(Fold::Zero(), values[i].At(args, c));
        add(sums, SourceOf(args, positions[i]));
      }
      left -= count;
      entry += count * stride;
    }
    return accs;
  }
  while (entry < end) {
    uint32_t position = args.segments.Position(entry);
    const uint32_t source = args.sources.Find(position);
    const uint32_t source_end = args.sources.End(source);
    typename Fold::Value sums[kColumns];
    SPARSEAGG_UNROLL
    for (uint32_t c = 0; c < kColumns; ++c) sums[c] = Fold::Zero();
    do {
      const Values values = load(position);
      SPARSEAGG_UNROLL
      for (uint32_t c = 0; c < kColumns; ++c) sums[c] = Fold::Plus(sums[c], values.At(args, c));
      ++entry;
    } while (entry < end && (position = args.segments.Position(entry)) < source_end);
    add(sums, args.sources.d_sources[source]);
  }
  return accs;
}

// Element-wise over segments × packs of kColumns columns: neighbouring threads read neighbouring packs of a row. A
// device has too few threads to keep its memory busy with one value each, so a thread loads 16 bytes where rows allow.
template <typename Fold, uint32_t kColumns>
struct FoldShortSegments {
  FoldValues args;

  SPARSEAGG_HD uint32_t Packs() const { return args.columns / kColumns; }
  uint64_t size() const { return uint64_t{args.segments.count} * Packs(); }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const Cell cell = CellOf(i, Packs());
    const auto segment = static_cast<uint32_t>(cell.row);
    const uint32_t begin = args.segments.Begin(segment);
    const uint32_t end = args.segments.End(segment);
    if (!args.classes.IsShort(end - begin)) return;
    // A variable, because GCC's instrumentation misses a store of what a call returns in memory.
    const auto accs = FoldSegment<Fold, kColumns>(args, begin, end, /*stride=*/1, cell.column);
    static_cast<Pack<typename Fold::Acc, kColumns>*>(args.d_accs)[i] = accs;
  }
};

// Calls run(kernel) with the FoldShortSegments that serves `args`: its packs are values of 16 bytes in rows of whole
// packs, else single values. Returns: what `run` returns.
template <typename Fold, typename Run>
auto RunShortSegments(const FoldValues& args, Run&& run) {
  const uint32_t columns = 16 / BytesOf(args.type);
  if (args.columns % columns == 0) {
    if constexpr (std::is_same_v<typename Fold::Value, double>) {
      if (columns == 8) return run(FoldShortSegments<Fold, 8>{args});
    }
    return columns == 4 ? run(FoldShortSegments<Fold, 4>{args}) : run(FoldShortSegments<Fold, 2>{args});
  }
  return run(FoldShortSegments<Fold, 1>{args});
}

// Block kernel: a block folds up to kMaxGroup columns of one listed segment after another, of a medium one with
// kWarpThreads threads and of a long one with kBlockThreads. A single thread would wait for one memory access after
// another, for example at a key that every client has. The two bodies:
//
//   in order     Float64 terms are added in order, by one thread for each column. Meanwhile all threads load the next
//                tile of terms into shared memory.
//   any order    Each lane folds every num_lanes-th contributor; the lanes' accumulators are combined as a tree.
//
// A block of one warp takes less than 6 KiB of shared memory, so that as many blocks as a multiprocessor can hold fit.
template <typename Fold, uint32_t kThreads>
struct FoldListedSegments {
  static constexpr uint32_t kMaxGroup = kMaxGroupColumns;
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
  SPARSEAGG_HD Acc* Out(const Part& part, uint32_t c) const {
    return static_cast<Acc*>(args.d_accs) + uint64_t{part.segment} * args.columns + part.column + c;
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
    double values[2][kTileValues];     // entries × columns: terms, or values whose source has duplicates to fold first
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
      *Out(part, thread) = shared.states[thread].acc;
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
      own.bits[j] =
          position < args.num_base
              ? LoadBits(args.d_base_accs, Number::kFloat64, uint64_t{position} * args.columns + column)
              : LoadBits(args.d_values, args.type, uint64_t{position - args.num_base} * args.columns + column);
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
    if (args.unique) {  // terms only: without a branch between them, additions follow one another at once
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
    state.acc = Fold::Add(state.acc, state.value, args.sources.d_sources[state.source], args.scale);
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
      if (thread < part.columns) *Out(part, thread) = shared.accs[thread];
    });
  }

  // Folds the base rows at entries lane, lane + num_lanes, … and the sources whose first entry of the segment is there.
  SPARSEAGG_HD Acc FoldLane(const Part& part, uint32_t lane, uint32_t num_lanes, uint32_t column) const {
    if (args.unique) return FoldSegment<Fold, 1>(args, part.begin + lane, part.end, num_lanes, column).values[0];
    Acc acc = Fold::Start();
    for (uint32_t entry = part.begin + lane; entry < part.end; entry += num_lanes) {
      const uint32_t position = args.segments.Position(entry);
      uint32_t end = entry + 1;
      if (position >= args.num_base) {
        const uint32_t source = args.sources.Find(position);
        const uint32_t source_begin = args.sources.Begin(source);
        if (entry > part.begin && args.segments.Position(entry - 1) >= source_begin) continue;  // a duplicate
        const uint32_t source_end = args.sources.End(source);
        while (end < part.end && args.segments.Position(end) < source_end) ++end;
      }
      acc = Fold::Combine(acc, FoldSegment<Fold, 1>(args, entry, end, /*stride=*/1, column).values[0]);
      if (part.end - entry <= num_lanes) break;  // entry + num_lanes could wrap around
    }
    return acc;
  }
};

// The body of FoldListedSegments that belongs to `Fold`.
template <typename Fold, uint32_t kNumThreads, bool kInOrder = Fold::kInOrder>
struct ListedBody {
  using Shared = typename FoldListedSegments<Fold, kNumThreads>::AnyOrderShared;
  struct Private {};
  static constexpr uint32_t kThreads = kNumThreads;
  static constexpr uint32_t kMinBlocks = 1;
  FoldListedSegments<Fold, kNumThreads> kernel;
  uint64_t num_blocks() const { return kernel.num_blocks(); }
  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    kernel.List().ForPartsOf(block.index(), kernel.NumGroups(),
                             [&](uint64_t i) { kernel.RunAnyOrder(block, shared, kernel.PartAt(i)); });
  }
};

template <typename Fold, uint32_t kNumThreads>
struct ListedBody<Fold, kNumThreads, true> {
  using Shared = typename FoldListedSegments<Fold, kNumThreads>::InOrderShared;
  struct Private {};
  static constexpr uint32_t kThreads = kNumThreads;
  static constexpr uint32_t kMinBlocks = 1;
  FoldListedSegments<Fold, kNumThreads> kernel;
  uint64_t num_blocks() const { return kernel.num_blocks(); }
  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    kernel.List().ForPartsOf(block.index(), kernel.NumGroups(),
                             [&](uint64_t i) { kernel.RunInOrder(block, shared, kernel.PartAt(i)); });
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_
