#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_select.cuh>

#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {
namespace {

// Whether a key is the first of a run of equal keys.
template <typename Key>
struct IsHead {
  const Key* d_keys;
  __device__ bool operator()(uint32_t i) const { return i == 0 || d_keys[i] != d_keys[i - 1]; }
};

template <typename Key>
cudaError_t SelectHeads(SelectCall& call, cudaStream_t stream) {
  return cub::DeviceSelect::If(call.d_scratch, call.scratch_bytes, thrust::counting_iterator<uint32_t>(0),
                               call.d_indices, call.d_num_selected, call.count,
                               IsHead<Key>{static_cast<const Key*>(call.d_sorted_keys)}, stream);
}

}  // namespace

cudaError_t SelectIndices(SelectCall& call, cudaStream_t stream) {
  if (call.d_flags == nullptr) {
    return call.key_bytes == 4 ? SelectHeads<uint32_t>(call, stream) : SelectHeads<uint64_t>(call, stream);
  }
  return cub::DeviceSelect::Flagged(call.d_scratch, call.scratch_bytes, thrust::counting_iterator<uint32_t>(0),
                                    call.d_flags, call.d_indices, call.d_num_selected, call.count, stream);
}

}  // namespace sparseagg::cuda
