// Kernels that divide the keys into tiles and parts of tiles, for kernels/tile_body.h.
#ifndef SPARSEAGG_CUDA_KERNELS_TILE_PLAN_H_
#define SPARSEAGG_CUDA_KERNELS_TILE_PLAN_H_

#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

// A tile is a range of keys, of the same number for all tiles: so many that a block can sort the tuples of a tile, as
// far as keys are spread evenly, and at least kMinTileSlots. A tile with more tuples, or with many of each key, is cut
// into parts, of kMatrixSlots keys or more.
inline constexpr uint32_t kMinTileSlots = 1024;
inline constexpr uint32_t kMaxTileSlots = 1 << 30;
inline constexpr uint32_t kMatrixSlots = 128;
inline constexpr uint32_t kMaxSorted = 2048;  // tuples and base rows that a block can sort

// The keys that are tiled: lists of strictly ascending keys of 32 bits, below 2^31. The lists are the sources, and at
// last the base rows, if there are any. Tiles begin at first_key and have tile_slots keys, a power of two.
struct TileKeys {
  const uint32_t* d_keys = nullptr;
  const uint32_t* d_begin = nullptr;  // of the sources, num_sources + 1
  uint32_t num_sources = 0;
  const uint32_t* d_base_keys = nullptr;
  uint32_t num_base = 0;
  uint32_t first_key = 0;  // no key is below, and none above last_key
  uint32_t last_key = 0;
  uint32_t tile_slots = kMinTileSlots;

  SPARSEAGG_HD uint32_t num_lists() const { return num_sources + (num_base > 0 ? 1 : 0); }
  SPARSEAGG_HD uint32_t num_tiles() const { return (last_key - first_key) / tile_slots + 1; }
  // Returns: the keys of tile `tile`, of which the last tile may have fewer.
  SPARSEAGG_HD uint32_t KeysOf(uint32_t tile) const {
    const uint32_t left = last_key - first_key - tile * tile_slots;
    return left < tile_slots ? left + 1 : tile_slots;
  }
  SPARSEAGG_HD uint32_t Begin(uint32_t list) const { return list == num_sources ? 0 : d_begin[list]; }
  SPARSEAGG_HD uint32_t End(uint32_t list) const { return list == num_sources ? num_base : d_begin[list + 1]; }
  // Returns: the first index in [low, high) of a list whose key is at least `key`, or `high`. Whatever the keys are,
  // the index does not descend when `key` ascends. So parts that follow each other never share a tuple.
  SPARSEAGG_HD uint32_t LowerBound(uint32_t list, uint32_t low, uint32_t high, uint32_t key) const {
    const uint32_t* d_list = list == num_sources ? d_base_keys : d_keys;
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (d_list[middle] < key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// Element-wise over lists × (tiles + 1): finds the first tuple of each tile in each list, and counts those of the
// tiles.
struct FindTileBounds {
  TileKeys keys;
  uint32_t* d_bounds = nullptr;  // tile-major, so that a block's bounds of many lists are adjacent
  uint32_t* d_tuples = nullptr;  // by tile; 0 at the start

  SPARSEAGG_HD uint64_t size() const { return uint64_t{keys.num_lists()} * (keys.num_tiles() + 1); }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    // Neighbouring threads search for neighbouring tiles of one list, so that they read the same sectors.
    const uint32_t num_tiles = keys.num_tiles();
    const Cell cell = CellOf(i, num_tiles + 1);
    const auto list = static_cast<uint32_t>(cell.row);
    const uint32_t tile = cell.column;
    // The first and the last bound hold whatever the keys are: a key outside of all tiles is found in the fold.
    uint32_t bound = tile == 0 ? keys.Begin(list) : keys.End(list);
    if (tile > 0 && tile < num_tiles) {
      bound = keys.LowerBound(list, keys.Begin(list), bound, keys.first_key + tile * keys.tile_slots);
    }
    d_bounds[uint64_t{tile} * keys.num_lists() + list] = bound;
    // A tile has its end less its begin, modulo 2^32 like the sum.
    if (tile > 0) AtomicAdd(&d_tuples[tile - 1], bound);
    if (tile < num_tiles) AtomicAdd(&d_tuples[tile], 0 - bound);
  }
};

// The size of parts. It affects the speed only, never a result.
struct PartSizes {
  uint32_t tile_slots = kMinTileSlots;
  uint32_t matrix_tuples = 1;  // at least 1; from so many tuples of kMatrixSlots keys on, a tile is dense

  // Returns: the keys of a part of a tile with so many tuples and base rows.
  SPARSEAGG_HD uint32_t SlotsOf(uint64_t num_tuples, uint32_t num_keys) const {
    const bool is_dense = num_tuples * kMatrixSlots >= uint64_t{matrix_tuples} * num_keys;
    return !is_dense && num_tuples <= kMaxSorted ? num_keys : CutSlots();
  }
  // Returns: the most parts that ListParts can make.
  uint64_t MaxParts(uint64_t num_tiles, uint64_t num_tuples) const {
    const uint64_t of_one = tile_slots / CutSlots();
    const uint64_t of_cut = num_tuples / kMaxSorted * of_one + num_tuples / matrix_tuples;
    return num_tiles + of_cut < num_tiles * of_one ? num_tiles + of_cut : num_tiles * of_one;
  }

 private:
  SPARSEAGG_HD uint32_t CutSlots() const {
    constexpr uint32_t kMaxParts = 128;  // of a tile; with more, most would have no tuples
    return tile_slots / kMaxParts > kMatrixSlots ? tile_slots / kMaxParts : kMatrixSlots;
  }
};

// Parts of up to kMatrixSlots keys are folded as a matrix, larger ones are sorted.
struct TilePart {
  uint32_t first_key;
  uint32_t num_slots;  // keys
};

// What the kernels count.
struct TileCounters {
  uint32_t num_parts;
  uint32_t num_drawn;  // parts that blocks have begun
  uint32_t num_rows;
  // 1 if a source's keys do not ascend strictly. Rows are then rubbish, within their arrays.
  uint32_t is_malformed;
  uint32_t is_skewed;  // 1 if a part has more tuples than a block can sort. Likewise.
};

// Block kernel, one block: lists the parts of all tiles in ascending order of keys. A tile without tuples has none.
struct ListParts {
  struct Shared {
    uint32_t num_parts;
  };
  struct Private {};
  static constexpr uint32_t kThreads = kBlockThreads;
  static constexpr uint32_t kMinBlocks = 1;
  static constexpr uint32_t kOwnTiles = 16;  // of a thread between two barriers

  TileKeys keys;
  PartSizes sizes;
  const uint32_t* d_tuples = nullptr;  // by tile
  TilePart* d_parts = nullptr;
  TileCounters* d_counters = nullptr;  // set

  uint64_t num_blocks() const { return 1; }

  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    const uint32_t num_tiles = keys.num_tiles();
    for (uint32_t first = 0; first < num_tiles; first += kThreads * kOwnTiles) {
      const uint32_t num_listed = first == 0 ? 0 : shared.num_parts;
      const auto for_own = [&](uint32_t thread, const auto& body) {
        SPARSEAGG_UNROLL
        for (uint32_t i = 0; i < kOwnTiles; ++i) {
          const uint32_t tile = first + thread * kOwnTiles + i;
          if (tile >= num_tiles || d_tuples[tile] == 0) continue;
          body(tile, keys.KeysOf(tile), sizes.SlotsOf(d_tuples[tile], keys.KeysOf(tile)));
        }
      };
      block.ExclusiveSum(
          [&](uint32_t thread) {
            uint32_t num_parts = 0;
            for_own(thread,
                    [&](uint32_t, uint32_t num_keys, uint32_t slots) { num_parts += (num_keys - 1) / slots + 1; });
            return num_parts;
          },
          [&](uint32_t thread, uint32_t before, uint32_t total) {
            if (thread == 0) shared.num_parts = num_listed + total;
            TilePart* d_part = d_parts + num_listed + before;
            for_own(thread, [&](uint32_t tile, uint32_t num_keys, uint32_t slots) {
              for (uint32_t slot = 0; slot < num_keys; slot += slots) {
                const uint32_t left = num_keys - slot;
                *d_part++ = {keys.first_key + tile * keys.tile_slots + slot, left < slots ? left : slots};
              }
            });
          });
    }
    block.Each([&](uint32_t thread) {
      if (thread == 0) *d_counters = {shared.num_parts, 0, 0, 0, 0};
    });
  }
};

// Element-wise: narrows the bounds of tiles to those of the parts, and clears the messages of the parts. The last
// part's end follows. Part p of list l has the tuples from d_bounds[p × lists + l] up to the next part's: no tuple lies
// between parts that follow each other, since a tile without a part has none.
struct FindPartBounds {
  TileKeys keys;
  const uint32_t* d_tile_bounds = nullptr;
  const TilePart* d_parts = nullptr;
  const TileCounters* d_counters = nullptr;
  uint32_t max_parts = 0;
  uint32_t* d_bounds = nullptr;    // (max_parts + 1) × lists
  uint64_t* d_messages = nullptr;  // max_parts

  SPARSEAGG_HD uint64_t num_bounds() const { return (uint64_t{max_parts} + 1) * keys.num_lists(); }
  // Only the device knows the number of parts. So that not many threads start in vain, there are few, and each finds
  // several bounds if need be.
  SPARSEAGG_HD uint64_t size() const {
    constexpr uint64_t kMaxSize = uint64_t{1} << 18;
    return num_bounds() < kMaxSize ? num_bounds() : kMaxSize;
  }
  SPARSEAGG_HD void operator()(uint64_t first) const {
    const uint32_t num_lists = keys.num_lists();
    const uint32_t num_parts = d_counters->num_parts;
    for (uint64_t i = first; i < (uint64_t{num_parts} + 1) * num_lists; i += size()) {
      const Cell cell = CellOf(i, num_lists);
      const uint32_t list = cell.column;
      if (cell.row == num_parts) {
        d_bounds[i] = keys.End(list);
        continue;
      }
      if (list == 0) d_messages[cell.row] = 0;
      const uint32_t key = d_parts[cell.row].first_key;
      const uint32_t slot = key - keys.first_key;
      const uint32_t* d_tile = d_tile_bounds + (uint64_t{slot / keys.tile_slots} * num_lists + list);
      d_bounds[i] = slot % keys.tile_slots == 0 ? d_tile[0] : keys.LowerBound(list, d_tile[0], d_tile[num_lists], key);
    }
  }
};

// Arguments of TileBody. The rows are written one after another, in ascending order of key.
struct FoldTiles {
  FoldKind kind = FoldKind::kSumFloat;
  bool has_values = true;  // false for UNION
  TileKeys keys;
  const void* d_values = nullptr;
  DType type = DType::kFloat32;
  const Source* d_sources = nullptr;
  bool uniform = false;  // weights and factors are all 1
  Accs base;             // of the base rows
  const uint32_t* d_base_counts = nullptr;
  // The plan.
  const uint32_t* d_bounds = nullptr;
  const TilePart* d_parts = nullptr;
  uint32_t max_parts = 0;
  uint64_t* d_messages = nullptr;  // what each part says about its rows, for the parts after it
  TileCounters* d_counters = nullptr;

  uint32_t* d_row_keys = nullptr;
  Accs accs;
  uint32_t* d_counts = nullptr;  // null: not needed
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_TILE_PLAN_H_
