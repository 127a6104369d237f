// What a device is asked to run: kernels, sorts and selections.
#ifndef SPARSEAGG_CUDA_KERNELS_CALLS_H_
#define SPARSEAGG_CUDA_KERNELS_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <variant>

#include "cuda/kernels/fetch.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/fold_values.h"
#include "cuda/kernels/import.h"
#include "cuda/kernels/segments.h"
#include "cuda/kernels/tile_plan.h"

namespace sparseagg::cuda {

// All kernels. FoldValues stands for three: for short, for medium and for long segments, in this order.
using KernelCall =
    std::variant<ExpandRun, GatherSegments, FoldValues, FindTileBounds, ListParts, FindPartBounds, FoldTiles,
                 ImportUpdates, FlagKeptRows, FlagNonzeroRows, WriteResult, FillValues, Fetch, CopyWords>;

// Stable sort of (key, payload) by key, between two pairs of buffers.
struct SortCall {
  void* d_keys[2] = {nullptr, nullptr};  // input in [0]
  uint32_t* d_payloads[2] = {nullptr, nullptr};
  uint32_t key_bytes = 4;
  int end_bit = 32;  // bits from here on are 0 in all keys
  uint32_t count = 0;
  void* d_scratch = nullptr;  // null: Device::Sort sets scratch_bytes
  size_t scratch_bytes = 0;
};

// Selection of the indices of the flags that are not 0, or of the first key of every run of equal keys. Ascending.
struct SelectCall {
  const uint8_t* d_flags = nullptr;  // null: select by keys
  const void* d_sorted_keys = nullptr;
  uint32_t key_bytes = 4;
  uint32_t count = 0;
  uint32_t* d_indices = nullptr;  // the output; must have room for all selected indices
  uint32_t* d_num_selected = nullptr;
  void* d_scratch = nullptr;  // null: Device::Select sets scratch_bytes
  size_t scratch_bytes = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_CALLS_H_
