// Upper bounds of the host memory that a round needs when its device fails.
#ifndef SPARSEAGG_CUDA_FALLBACK_BYTES_H_
#define SPARSEAGG_CUDA_FALLBACK_BYTES_H_

#include <cstddef>
#include <cstdint>

#include "cuda/merge/tensor_shape.h"

namespace sparseagg::cuda {

// Largest memory of the arrays by key when the tile path runs on the host; beyond it the host sorts (device_engine.cc).
inline constexpr size_t kMaxHostTileBytes = size_t{64} << 20;

// The input of such a merge.
struct FallbackInput {
  uint64_t num_rows = 0;    // of earlier merges
  uint64_t num_tuples = 0;  // pending
  uint64_t max_rows = 0;    // upper bound of the rows after the merge
};

// Bytes by which an update may grow when the CPU engine prepares it: rows of repeated keys are folded in 64 bits.
uint64_t GrowthBytes(const TensorShape& shape, uint64_t num_tuples, bool unique, uint64_t sent_bytes);

// The most memory that a merge with the device's kernels on the host needs in addition to `input`, its result included.
uint64_t HostMergeBytes(const TensorShape& shape, const FallbackInput& input);

// The same for merging and finishing; `result_bytes` is the size of the result.
uint64_t HostFinishBytes(const TensorShape& shape, const FallbackInput& input, uint64_t result_bytes);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_FALLBACK_BYTES_H_
