// The call of the tile path's fold; kernels/tile_body.h has the kernel.
#ifndef SPARSEAGG_CUDA_KERNELS_FOLD_TILES_H_
#define SPARSEAGG_CUDA_KERNELS_FOLD_TILES_H_

#include <cstdint>

#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

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
  TermScale scale;
  // Rows of an earlier merge; absent if d_base_bounds is null. d_base_counts is null if counts are not needed. Bounds
  // are of FindPartBounds, as those of the sources.
  const uint32_t* d_base_keys = nullptr;
  const void* d_base_accs = nullptr;
  const uint32_t* d_base_counts = nullptr;
  const uint32_t* d_base_bounds = nullptr;
  // The plan.
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
  void* d_accs = nullptr;
  uint32_t* d_counts = nullptr;    // null: not needed
  uint32_t* d_num_rows = nullptr;  // 0 at the start
  // 0 at the start; set to 1 if a source's keys do not ascend strictly. Rows are then rubbish, within their arrays.
  uint32_t* d_is_malformed = nullptr;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_FOLD_TILES_H_
