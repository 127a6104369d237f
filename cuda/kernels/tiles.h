// Kernels of the tile path, which merges without a sort. It serves dense keys that ascend in every source.
#ifndef SPARSEAGG_CUDA_KERNELS_TILES_H_
#define SPARSEAGG_CUDA_KERNELS_TILES_H_

#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

// A block merges one tile, which is a range of keys. It keeps a table of accumulators in shared memory, with one slot
// for each key, and adds the sources one after another, with a barrier after each. A source has each key at most once,
// so two threads never write to one slot at a time, and every slot gets its terms in canonical order. Reads the input
// once; uses no atomics.

// Element-wise over sources × (tiles + 1): finds the first tuple of each tile in each source's keys.
struct FindTileBounds {
  const void* d_keys = nullptr;  // of each source, strictly ascending
  uint32_t key_bytes = 4;
  const uint32_t* d_begin = nullptr;  // of the sources, num_sources + 1; null: one source of `num_keys` keys
  uint32_t num_sources = 1;
  uint32_t num_keys = 0;
  uint32_t slots = 1;  // keys of one tile
  uint32_t num_tiles = 0;
  uint32_t* d_bounds = nullptr;  // tile-major, so that a block's bounds of many sources are adjacent

  uint64_t size() const { return uint64_t{num_sources} * (num_tiles + 1); }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const auto source = static_cast<uint32_t>(i % num_sources);
    const uint64_t first_key = i / num_sources * slots;
    uint32_t low = d_begin == nullptr ? 0 : d_begin[source];
    uint32_t high = d_begin == nullptr ? num_keys : d_begin[source + 1];
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (LoadKey(d_keys, key_bytes, middle) < first_key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    d_bounds[i] = low;
  }
};

// Arguments of TileBody. Outputs have one element (d_accs: columns) for each key below the dimension.
struct FoldTiles {
  FoldKind kind = FoldKind::kSumFloat;
  uint32_t columns = 1;
  uint32_t slots = 1;
  uint32_t num_tiles = 0;
  uint64_t dimension = 0;
  uint32_t key_bytes = 4;
  const void* d_keys = nullptr;
  const void* d_values = nullptr;
  Number type = Number::kFloat32;
  const Source* d_sources = nullptr;
  uint32_t num_sources = 0;
  const uint32_t* d_bounds = nullptr;
  TermScale scale;
  // Rows of an earlier merge; absent if d_base_bounds is null. d_base_counts is null if counts are not needed.
  const void* d_base_keys = nullptr;
  const void* d_base_accs = nullptr;
  const uint32_t* d_base_counts = nullptr;
  const uint32_t* d_base_bounds = nullptr;

  uint8_t* d_touched = nullptr;  // by key: 1 if the key occurred, else 0
  void* d_accs = nullptr;        // undefined for keys that did not occur
  uint32_t* d_counts = nullptr;  // likewise; null: not needed
};

// TileBody::Shared, which contains the table, must fit kMaxSharedBytes.
inline constexpr uint32_t kTileTableBytes = 30 << 10;

// Returns: the number of keys whose accumulators and counts fit one tile; 0 if a single row is too large.
inline uint32_t TileSlots(FoldKind kind, uint32_t columns) {
  return static_cast<uint32_t>(kTileTableBytes / (uint64_t{columns} * AccBytes(kind) + sizeof(uint32_t)));
}

template <typename Fold>
struct TileBody {
  using Acc = typename Fold::Acc;
  using Value = typename Fold::Value;
  // Chunks loaded at a time. Sources must be added one after another, but their values may be loaded together.
  static constexpr uint32_t kStages = 4;

  struct Shared {
    alignas(16) unsigned char table[kTileTableBytes];  // accumulators, then counts
    Value values[kStages][kBlockThreads];
    uint32_t slots[kStages][kBlockThreads];
    Source sources[kStages];
    // Bounds of the tile in each source of a group. For two groups, so that threads may write those of one while slower
    // threads still read the other's.
    uint32_t begin[2][kBlockThreads];
    uint32_t end[2][kBlockThreads];
  };

  // Consecutive values of one source, at most one for each thread.
  struct Chunk {
    uint32_t source;  // index in the group
    uint32_t first;   // first value, among the source's values in the tile
    uint32_t count;
  };

  FoldTiles args;

  uint64_t num_blocks() const { return args.num_tiles; }

  SPARSEAGG_HD Acc* Accs(Shared& shared) const { return reinterpret_cast<Acc*>(shared.table); }
  SPARSEAGG_HD uint32_t* Counts(Shared& shared) const {
    return reinterpret_cast<uint32_t*>(shared.table + uint64_t{args.slots} * args.columns * sizeof(Acc));
  }
  // Threads for each tuple: one for each column; one for UNION, which has no columns.
  SPARSEAGG_HD uint32_t Lanes() const { return args.columns == 0 ? 1 : args.columns; }

  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    const auto tile = static_cast<uint32_t>(block.index());
    const uint32_t num_threads = block.num_threads();
    block.Phase([&](uint32_t thread) {
      for (uint32_t i = thread; i < args.slots * args.columns; i += num_threads) Accs(shared)[i] = Fold::Start();
      for (uint32_t i = thread; i < args.slots; i += num_threads) Counts(shared)[i] = 0;
    });
    if (args.d_base_bounds != nullptr) {
      block.Phase([&](uint32_t thread) { AddBase(tile, thread, num_threads, shared); });
    }
    for (uint32_t first = 0, half = 0; first < args.num_sources; first += num_threads, half = 1 - half) {
      const uint32_t left = args.num_sources - first;
      const uint32_t group = left < num_threads ? left : num_threads;
      block.Phase([&](uint32_t thread) {
        if (thread >= group) return;
        const uint64_t bound = uint64_t{tile} * args.num_sources + first + thread;
        shared.begin[half][thread] = args.d_bounds[bound];
        shared.end[half][thread] = args.d_bounds[bound + args.num_sources];
      });
      AddGroup(block, tile, first, group, half, shared);
    }
    block.Phase([&](uint32_t thread) { Write(tile, thread, num_threads, shared); });
  }

  SPARSEAGG_HD void AddBase(uint32_t tile, uint32_t thread, uint32_t num_threads, Shared& shared) const {
    const uint32_t begin = args.d_base_bounds[tile];
    const uint32_t num_values = (args.d_base_bounds[tile + 1] - begin) * Lanes();
    for (uint32_t i = thread; i < num_values; i += num_threads) {
      const uint32_t row = begin + i / Lanes();
      const uint32_t column = i % Lanes();
      const uint32_t slot = SlotOf(LoadKey(args.d_base_keys, args.key_bytes, row), tile);
      if (args.columns > 0) {
        const auto* base = static_cast<const Acc*>(args.d_base_accs);
        Acc& acc = Accs(shared)[slot * args.columns + column];
        acc = Fold::Combine(acc, base[uint64_t{row} * args.columns + column]);
      }
      if (column == 0) Counts(shared)[slot] = args.d_base_counts == nullptr ? 1 : args.d_base_counts[row];
    }
  }

  // Adds sources first, …, first + group − 1.
  template <typename Block>
  SPARSEAGG_HD void AddGroup(Block& block, uint32_t tile, uint32_t first, uint32_t group, uint32_t half,
                             Shared& shared) const {
    const uint32_t lanes = Lanes();
    uint32_t source = 0;
    uint32_t done = 0;  // values of that source already taken
    while (true) {
      Chunk chunks[kStages];
      uint32_t num_chunks = 0;
      while (num_chunks < kStages && source < group) {
        const uint32_t left = (shared.end[half][source] - shared.begin[half][source]) * lanes - done;
        if (left == 0) {
          ++source;
          done = 0;
          continue;
        }
        const uint32_t count = left < block.num_threads() ? left : block.num_threads();
        chunks[num_chunks++] = {source, done, count};
        done += count;
      }
      if (num_chunks == 0) return;
      block.Phase([&](uint32_t thread) {
        // All loads come before the first use of a loaded value. The loops have constant bounds, so that they are
        // unrolled and the loaded values stay in registers.
        uint64_t keys[kStages] = {};
        uint64_t values[kStages] = {};
        const auto has_value = [&](uint32_t stage) { return stage < num_chunks && thread < chunks[stage].count; };
        for (uint32_t stage = 0; stage < kStages; ++stage) {
          if (!has_value(stage)) continue;
          const uint32_t at = chunks[stage].first + thread;
          const uint32_t tuple = shared.begin[half][chunks[stage].source] + at / lanes;
          keys[stage] = LoadKey(args.d_keys, args.key_bytes, tuple);
          if (args.columns == 0) continue;
          values[stage] = LoadBits(args.d_values, args.type, uint64_t{tuple} * args.columns + at % lanes);
        }
        if (thread < num_chunks) shared.sources[thread] = args.d_sources[first + chunks[thread].source];
        for (uint32_t stage = 0; stage < kStages; ++stage) {
          if (!has_value(stage)) continue;
          shared.slots[stage][thread] = SlotOf(keys[stage], tile);
          if (args.columns == 0) continue;
          shared.values[stage][thread] = Fold::Plus(Fold::Zero(), Fold::Of(args.type, values[stage]));
        }
      });
      for (uint32_t stage = 0; stage < num_chunks; ++stage) {
        const Chunk chunk = chunks[stage];
        block.Phase([&](uint32_t thread) {
          if (thread >= chunk.count) return;
          const uint32_t column = (chunk.first + thread) % lanes;
          const uint32_t slot = shared.slots[stage][thread];
          if (args.columns > 0) {
            Acc& acc = Accs(shared)[slot * args.columns + column];
            acc = Fold::Add(acc, shared.values[stage][thread], shared.sources[stage], args.scale);
          }
          if (column == 0) ++Counts(shared)[slot];
        });
      }
    }
  }

  SPARSEAGG_HD void Write(uint32_t tile, uint32_t thread, uint32_t num_threads, Shared& shared) const {
    const uint64_t first = uint64_t{tile} * args.slots;
    const uint64_t left = args.dimension - first;
    const auto slots = static_cast<uint32_t>(left < args.slots ? left : args.slots);
    const uint32_t* counts = Counts(shared);
    for (uint32_t slot = thread; slot < slots; slot += num_threads) {
      args.d_touched[first + slot] = counts[slot] != 0 ? 1 : 0;
      if (args.d_counts != nullptr) args.d_counts[first + slot] = counts[slot];
    }
    for (uint32_t i = thread; i < slots * args.columns; i += num_threads) {
      if (counts[i / args.columns] == 0) continue;
      static_cast<Acc*>(args.d_accs)[first * args.columns + i] = Accs(shared)[i];
    }
  }

  SPARSEAGG_HD uint32_t SlotOf(uint64_t key, uint32_t tile) const {
    return static_cast<uint32_t>(key - uint64_t{tile} * args.slots);
  }
};

// Element-wise over rows × 8-byte words of a row: copies the accumulators and counts of touched keys to adjacent rows.
struct GatherTouched {
  const uint32_t* d_touched_keys = nullptr;  // ascending
  uint32_t num_rows = 0;
  uint32_t key_bytes = 4;
  uint32_t words = 0;                     // of a row of accumulators
  const uint64_t* d_from_accs = nullptr;  // by key
  const uint32_t* d_from_counts = nullptr;
  void* d_keys = nullptr;
  uint64_t* d_accs = nullptr;
  uint32_t* d_counts = nullptr;  // null: not needed

  uint64_t size() const { return uint64_t{num_rows} * (words == 0 ? 1 : words); }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const Cell cell = CellOf(i, words == 0 ? 1 : words);
    const uint64_t row = cell.row;
    const uint64_t word = cell.column;
    const uint64_t key = d_touched_keys[row];
    if (words > 0) d_accs[i] = d_from_accs[key * words + word];
    if (word != 0) return;
    StoreKey(d_keys, key_bytes, row, key);
    if (d_counts != nullptr) d_counts[row] = d_from_counts[key];
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_TILES_H_
