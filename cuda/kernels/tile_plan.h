// Kernels that divide the keys into tiles and parts of tiles, for kernels/tile_body.h.
#ifndef SPARSEAGG_CUDA_KERNELS_TILE_PLAN_H_
#define SPARSEAGG_CUDA_KERNELS_TILE_PLAN_H_

#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

// Keys have 32 bits and are below 2^31. A tile is a range of kTileSlots keys; the first begins at `first_key`. A tile
// with many tuples is cut into up to kMaxTileParts parts of equal size, so that no block has much more work than
// others. Part p of tile t has the index t × kMaxTileParts + p.
inline constexpr uint32_t kTileSlots = 1024;
inline constexpr uint32_t kMaxTileParts = 32;

// Returns: the first index in [low, high) whose key is at least `key`, or `high`. Requires: keys ascend there.
SPARSEAGG_HD inline uint32_t LowerBound(const uint32_t* d_keys, uint32_t low, uint32_t high, uint32_t key) {
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (d_keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Element-wise over sources × (tiles + 1): finds the first tuple of each tile in each source's keys.
struct FindTileBounds {
  const uint32_t* d_keys = nullptr;   // of each source, strictly ascending
  const uint32_t* d_begin = nullptr;  // of the sources, num_sources + 1; null: one source of `num_keys` keys
  uint32_t num_sources = 1;
  uint32_t num_keys = 0;
  uint32_t first_key = 0;
  uint32_t num_tiles = 0;
  uint32_t* d_bounds = nullptr;  // tile-major, so that a block's bounds of many sources are adjacent

  uint64_t size() const { return uint64_t{num_sources} * (num_tiles + 1); }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    // Neighbouring threads search for neighbouring tiles of one source, so that they read the same sectors.
    const auto source = static_cast<uint32_t>(i / (num_tiles + 1));
    const auto tile = static_cast<uint32_t>(i % (num_tiles + 1));
    const uint32_t low = d_begin == nullptr ? 0 : d_begin[source];
    const uint32_t high = d_begin == nullptr ? num_keys : d_begin[source + 1];
    // The first and the last bound hold whatever the keys are: a key outside of all tiles is found in the fold.
    uint32_t bound = tile == 0 ? low : high;
    if (tile > 0 && tile < num_tiles) bound = LowerBound(d_keys, low, high, first_key + tile * kTileSlots);
    d_bounds[uint64_t{tile} * num_sources + source] = bound;
  }
};

// Block kernel, one block of one warp a tile: chooses the number of the tile's parts. No shared memory. The choice
// affects the speed only, never a result.
struct PlanTiles {
  struct Shared {};
  struct Private {};
  static constexpr uint32_t kThreads = kWarpThreads;
  static constexpr uint32_t kMinBlocks = 1;

  const uint32_t* d_bounds = nullptr;
  uint32_t num_sources = 0;
  const uint32_t* d_base_bounds = nullptr;  // null: no base rows
  uint32_t num_tiles = 0;
  uint32_t part_tuples = 1;        // a part has fewer, as far as the keys are spread evenly within the tile
  uint8_t* d_num_parts = nullptr;  // by tile: a power of two; 0 for a tile without tuples and base rows
  uint8_t* d_is_part = nullptr;    // by index of a part: whether the part exists

  uint64_t num_blocks() const { return num_tiles; }

  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared&) const {
    const uint64_t tile = block.index();
    const uint32_t* bounds = d_bounds + tile * num_sources;
    block.ExclusiveSum(
        [&](uint32_t thread) {
          uint32_t tuples = 0;
          if (thread == 0 && d_base_bounds != nullptr) tuples = d_base_bounds[tile + 1] - d_base_bounds[tile];
          for (uint32_t source = thread; source < num_sources; source += block.num_threads()) {
            tuples += bounds[source + num_sources] - bounds[source];
          }
          return tuples;
        },
        [&](uint32_t thread, uint32_t, uint32_t tuples) {
          uint32_t parts = tuples == 0 ? 0 : 1;
          while (parts != 0 && parts < kMaxTileParts && tuples / parts >= part_tuples) parts *= 2;
          if (thread == 0) d_num_parts[tile] = static_cast<uint8_t>(parts);
          for (uint32_t part = thread; part < kMaxTileParts; part += block.num_threads()) {
            d_is_part[tile * kMaxTileParts + part] = part < parts ? 1 : 0;
          }
        });
  }
};

// Element-wise over (parts + 1) × sources: narrows the bounds of tiles to those of the parts that PlanTiles chose. The
// last part's end follows. Part p of source s has the tuples from d_bounds[p × num_sources + s] up to the next part's:
// no tuple lies between parts that follow each other, since a tile without a part has none.
struct FindPartBounds {
  const uint32_t* d_keys = nullptr;  // of each source, strictly ascending
  const uint32_t* d_tile_bounds = nullptr;
  uint32_t num_sources = 1;
  uint32_t first_key = 0;
  uint32_t num_tiles = 0;
  const uint8_t* d_num_parts = nullptr;
  const uint32_t* d_parts = nullptr;
  const uint32_t* d_count = nullptr;  // how many parts
  uint32_t max_count = 0;
  uint32_t* d_bounds = nullptr;

  uint64_t size() const { return (uint64_t{max_count} + 1) * num_sources; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const auto part = static_cast<uint32_t>(i / num_sources);
    const auto source = static_cast<uint32_t>(i % num_sources);
    const uint32_t count = *d_count;
    if (part > count) return;
    const uint32_t index = part == count ? num_tiles * kMaxTileParts : d_parts[part];
    const uint32_t* d_tile = d_tile_bounds + (uint64_t{index / kMaxTileParts} * num_sources + source);
    uint32_t bound = d_tile[0];
    if (index % kMaxTileParts != 0) {
      const uint32_t tile = index / kMaxTileParts;
      const uint32_t slots = kTileSlots / d_num_parts[tile];
      const uint32_t key = first_key + tile * kTileSlots + index % kMaxTileParts * slots;
      bound = LowerBound(d_keys, bound, d_tile[num_sources], key);
    }
    d_bounds[i] = bound;
  }
};

// Returns: the most parts that PlanTiles can make.
inline uint64_t MaxParts(uint64_t num_tiles, uint64_t num_tuples, uint64_t part_tuples) {
  const uint64_t parts = num_tiles + 2 * num_tuples / part_tuples;
  return parts < num_tiles * kMaxTileParts ? parts : num_tiles * kMaxTileParts;
}

// Arguments of TileBody. The rows are written once, one after another, in ascending order of key.
struct FoldTiles {
  FoldKind kind = FoldKind::kSumFloat;
  bool has_values = true;  // false for UNION
  const uint32_t* d_keys = nullptr;
  const void* d_values = nullptr;
  Number type = Number::kFloat32;
  const Source* d_sources = nullptr;
  uint32_t num_sources = 0;
  bool uniform = false;  // every weight is 1
  // Rows of an earlier merge; absent if d_base_bounds is null. d_base_counts is null if counts are not needed. Bounds
  // are of FindPartBounds, as those of the sources.
  const uint32_t* d_base_keys = nullptr;
  Accs base;
  const uint32_t* d_base_counts = nullptr;
  const uint32_t* d_base_bounds = nullptr;
  // The plan.
  uint32_t first_key = 0;
  const uint32_t* d_bounds = nullptr;
  const uint8_t* d_num_parts = nullptr;  // by tile
  const uint32_t* d_parts = nullptr;     // indices of the parts, ascending
  const uint32_t* d_count = nullptr;     // how many parts
  uint32_t max_count = 0;                // the most that *d_count may be
  // 0 at the start: what each part says about its rows, for the parts after it; and the number of parts that blocks
  // have drawn.
  uint64_t* d_messages = nullptr;  // max_count elements
  uint32_t* d_num_drawn = nullptr;

  uint32_t* d_row_keys = nullptr;
  Accs accs;
  uint32_t* d_counts = nullptr;    // null: not needed
  uint32_t* d_num_rows = nullptr;  // 0 at the start
  // 0 at the start; set to 1 if a source's keys do not ascend strictly. Rows are then rubbish, within their arrays.
  uint32_t* d_is_malformed = nullptr;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_TILE_PLAN_H_
