// The segmented fold: one accumulator per segment and column.
#ifndef SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_
#define SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_

#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

// Arguments of both kernels below. FoldLongSegments folds the segments that `longs` lists, FoldShortSegments the
// others.
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
  LongSegments longs;
  void* d_accs = nullptr;  // segments × columns of Acc: the result
};

// Returns: the source of a tuple, or a default source if weights do not matter.
SPARSEAGG_HD inline Source SourceOf(const FoldValues& args, uint32_t position) {
  return args.uniform ? Source() : args.sources.d_sources[args.sources.Find(position)];
}

// Folds entries [begin, end) of one segment at one column, from left to right.
template <typename Fold>
SPARSEAGG_HD typename Fold::Acc FoldSegment(const FoldValues& args, uint32_t begin, uint32_t end, uint32_t column) {
  const auto* base = static_cast<const typename Fold::Acc*>(args.d_base_accs);
  const uint64_t columns = args.columns;
  typename Fold::Acc acc = Fold::Start();
  uint32_t entry = begin;
  for (; entry < end && args.segments.Position(entry) < args.num_base; ++entry) {
    acc = Fold::Combine(acc, base[args.segments.Position(entry) * columns + column]);
  }
  const auto load = [&](uint32_t position) {
    return Fold::Load(args.d_values, args.type, (position - args.num_base) * columns + column);
  };
  if (args.unique) {
    for (; entry < end; ++entry) {
      const uint32_t position = args.segments.Position(entry);
      acc = Fold::Add(acc, Fold::Plus(Fold::Zero(), load(position)), SourceOf(args, position), args.scale);
    }
    return acc;
  }
  while (entry < end) {
    uint32_t position = args.segments.Position(entry);
    const uint32_t source = args.sources.Find(position);
    const uint32_t source_end = args.sources.End(source);
    auto value = Fold::Zero();
    do {
      value = Fold::Plus(value, load(position));
      ++entry;
    } while (entry < end && (position = args.segments.Position(entry)) < source_end);
    acc = Fold::Add(acc, value, args.sources.d_sources[source], args.scale);
  }
  return acc;
}

// Element-wise over segments × columns: neighbouring threads read neighbouring columns of a row.
template <typename Fold>
struct FoldShortSegments {
  FoldValues args;

  uint64_t size() const { return uint64_t{args.segments.count} * args.columns; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const Cell cell = CellOf(i, args.columns);
    const auto segment = static_cast<uint32_t>(cell.row);
    const uint32_t begin = args.segments.Begin(segment);
    const uint32_t end = args.segments.End(segment);
    if (args.longs.Holds(end - begin)) return;
    static_cast<typename Fold::Acc*>(args.d_accs)[i] = FoldSegment<Fold>(args, begin, end, cell.column);
  }
};

// Block kernel: a block folds up to kMaxGroup columns of one long segment after another. A single thread would wait for
// one memory access after another, for example at a key that every client has. The two bodies:
//
//   in order     Float64 terms are added in order, by one thread for each column. Meanwhile all threads load the next
//                tile of terms into shared memory.
//   any order    Each lane folds every num_lanes-th contributor; the lanes' accumulators are combined as a tree.
template <typename Fold>
struct FoldLongSegments {
  static constexpr uint32_t kMaxGroup = 32;  // columns of one block
  using Acc = typename Fold::Acc;

  FoldValues args;

  SPARSEAGG_HD uint32_t Group() const { return args.columns < kMaxGroup ? args.columns : kMaxGroup; }
  SPARSEAGG_HD uint32_t NumGroups() const { return (args.columns + Group() - 1) / Group(); }
  uint64_t num_blocks() const { return args.longs.NumBlocks(NumGroups()); }

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
    part.segment = args.longs.d_segments[index / NumGroups()];
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

  static constexpr uint32_t kTileValues = 1024;
  static constexpr uint32_t kIsTerm = 0xffffffffu;
  static constexpr uint32_t kNobody = 0xfffffffeu;

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

  template <typename Block>
  SPARSEAGG_HD void RunInOrder(Block& block, InOrderShared& shared, const Part& part) const {
    const uint32_t tile_entries = kTileValues / part.columns;
    const uint32_t num_tiles = (part.end - part.begin + tile_entries - 1) / tile_entries;
    const uint32_t num_threads = block.num_threads();
    block.Phase([&](uint32_t thread) {
      for (uint32_t c = thread; c < part.columns; c += num_threads) {
        shared.states[c].acc = Fold::Start();
        shared.states[c].value = Fold::Zero();
        shared.states[c].source = kNobody;
      }
      LoadTile(part, 0, tile_entries, thread, num_threads, shared);
    });
    for (uint32_t tile = 0; tile < num_tiles; ++tile) {
      block.Phase([&](uint32_t thread) {
        if (tile + 1 < num_tiles) LoadTile(part, tile + 1, tile_entries, thread, num_threads, shared);
        for (uint32_t c = thread; c < part.columns; c += num_threads) FoldTile(part, tile, tile_entries, c, shared);
      });
    }
    block.Phase([&](uint32_t thread) {
      for (uint32_t c = thread; c < part.columns; c += num_threads) {
        Flush(shared.states[c]);
        *Out(part, c) = shared.states[c].acc;
      }
    });
  }

  SPARSEAGG_HD void LoadTile(const Part& part, uint32_t tile, uint32_t tile_entries, uint32_t thread,
                             uint32_t num_threads, InOrderShared& shared) const {
    const uint32_t first = part.begin + tile * tile_entries;
    const uint32_t left = part.end - first;
    const uint32_t entries = left < tile_entries ? left : tile_entries;
    double* values = shared.values[tile % 2];
    uint32_t* sources = shared.sources[tile % 2];
    for (uint32_t i = thread; i < entries * part.columns; i += num_threads) {
      const uint32_t entry = i / part.columns;
      const uint32_t c = i % part.columns;
      const uint32_t position = args.segments.Position(first + entry);
      uint32_t source = kIsTerm;
      if (position < args.num_base) {
        values[i] = static_cast<const double*>(args.d_base_accs)[uint64_t{position} * args.columns + part.column + c];
      } else {
        const uint64_t row = position - args.num_base;
        const double value = Fold::Load(args.d_values, args.type, row * args.columns + part.column + c);
        if (args.unique) {
          values[i] = Fold::Term(Fold::Plus(Fold::Zero(), value), SourceOf(args, position));
        } else {
          values[i] = value;
          source = args.sources.Find(position);
        }
      }
      if (c == 0) sources[entry] = source;
    }
  }

  SPARSEAGG_HD void FoldTile(const Part& part, uint32_t tile, uint32_t tile_entries, uint32_t c,
                             InOrderShared& shared) const {
    const uint32_t left = part.end - (part.begin + tile * tile_entries);
    const uint32_t entries = left < tile_entries ? left : tile_entries;
    const double* values = shared.values[tile % 2] + c;
    const uint32_t* sources = shared.sources[tile % 2];
    State state = shared.states[c];
    for (uint32_t entry = 0; entry < entries; ++entry) {
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
    Acc accs[kBlockThreads];
  };

  template <typename Block>
  SPARSEAGG_HD void RunAnyOrder(Block& block, AnyOrderShared& shared, const Part& part) const {
    const uint32_t num_lanes = block.num_threads() / part.columns;
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
    Acc acc = Fold::Start();
    for (uint32_t entry = part.begin + lane; entry < part.end; entry += num_lanes) {
      const uint32_t position = args.segments.Position(entry);
      uint32_t end = entry + 1;
      if (position >= args.num_base && !args.unique) {
        const uint32_t source = args.sources.Find(position);
        const uint32_t source_begin = args.sources.Begin(source);
        if (entry > part.begin && args.segments.Position(entry - 1) >= source_begin) continue;  // a duplicate
        const uint32_t source_end = args.sources.End(source);
        while (end < part.end && args.segments.Position(end) < source_end) ++end;
      }
      acc = Fold::Combine(acc, FoldSegment<Fold>(args, entry, end, column));
      if (part.end - entry <= num_lanes) break;  // entry + num_lanes could wrap around
    }
    return acc;
  }
};

// The body of FoldLongSegments that belongs to `Fold`.
template <typename Fold, bool kInOrder = Fold::kInOrder>
struct LongBody {
  using Shared = typename FoldLongSegments<Fold>::AnyOrderShared;
  struct Private {};
  static constexpr uint32_t kThreads = kBlockThreads;
  static constexpr uint32_t kMinBlocks = 1;
  FoldLongSegments<Fold> kernel;
  uint64_t num_blocks() const { return kernel.num_blocks(); }
  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    kernel.args.longs.ForPartsOf(block.index(), kernel.NumGroups(),
                                 [&](uint64_t i) { kernel.RunAnyOrder(block, shared, kernel.PartAt(i)); });
  }
};

template <typename Fold>
struct LongBody<Fold, true> {
  using Shared = typename FoldLongSegments<Fold>::InOrderShared;
  struct Private {};
  static constexpr uint32_t kThreads = kBlockThreads;
  static constexpr uint32_t kMinBlocks = 1;
  FoldLongSegments<Fold> kernel;
  uint64_t num_blocks() const { return kernel.num_blocks(); }
  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    kernel.args.longs.ForPartsOf(block.index(), kernel.NumGroups(),
                                 [&](uint64_t i) { kernel.RunInOrder(block, shared, kernel.PartAt(i)); });
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_FOLD_VALUES_H_
