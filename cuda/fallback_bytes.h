// What a round takes on the host when its device fails.
#ifndef SPARSEAGG_CUDA_FALLBACK_BYTES_H_
#define SPARSEAGG_CUDA_FALLBACK_BYTES_H_

#include <cstddef>
#include <cstdint>

#include "cuda/tensor_shape.h"

namespace sparseagg::cuda {

// Of the arrays by key of a merge by tiles on the host, beyond which it sorts (device_engine.cc): memory that does not
// grow with the input.
inline constexpr size_t kMaxHostTileBytes = size_t{64} << 20;

// What a merge would go over.
struct FallbackInput {
  uint64_t num_rows = 0;    // of earlier merges
  uint64_t num_tuples = 0;  // that wait
  uint64_t max_rows = 0;    // that there may be then
};

// By how much an update may grow when the CPU engine prepares it: where keys repeat, rows are folded in 64 bits.
uint64_t GrowthBytes(const TensorShape& shape, uint64_t num_tuples, bool unique, uint64_t sent_bytes);

// The most that a merge by the device's kernels on the host takes beside `input`, with a copy of the rows that it
// gives.
uint64_t HostMergeBytes(const TensorShape& shape, const FallbackInput& input);

// The same of merging and finishing. `result_bytes`: of the result.
uint64_t HostFinishBytes(const TensorShape& shape, const FallbackInput& input, uint64_t result_bytes);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_FALLBACK_BYTES_H_
