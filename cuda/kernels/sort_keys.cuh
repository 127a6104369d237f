// The radix sort. Each sort_keys*.cu instantiates it once, so that CUB's slow compilations run in parallel.
#ifndef SPARSEAGG_CUDA_KERNELS_SORT_KEYS_CUH_
#define SPARSEAGG_CUDA_KERNELS_SORT_KEYS_CUH_

#include <cub/device/device_radix_sort.cuh>

#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

template <typename Key>
cudaError_t SortKeys(SortCall& call, int& output, cudaStream_t stream) {
  cub::DoubleBuffer<Key> keys(static_cast<Key*>(call.d_keys[0]), static_cast<Key*>(call.d_keys[1]));
  cub::DoubleBuffer<uint32_t> payloads(call.d_payloads[0], call.d_payloads[1]);
  const cudaError_t error = cub::DeviceRadixSort::SortPairs(call.d_scratch, call.scratch_bytes, keys, payloads,
                                                            call.count, 0, call.end_bit, stream);
  output = keys.selector;
  return error;
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_SORT_KEYS_CUH_
