// Launchers of element-wise and block kernels on a GPU.
#ifndef SPARSEAGG_CUDA_KERNELS_GRID_CUH_
#define SPARSEAGG_CUDA_KERNELS_GRID_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/block.h"

namespace sparseagg::cuda {

inline constexpr uint64_t kMaxGridBlocks = (uint64_t{1} << 31) - 1;

inline unsigned GridFor(uint64_t num_blocks) {
  return static_cast<unsigned>(num_blocks < kMaxGridBlocks ? num_blocks : kMaxGridBlocks);
}

template <typename Kernel>
__global__ void __launch_bounds__(kBlockThreads) RunElements(const __grid_constant__ Kernel kernel, uint64_t size) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += stride) kernel(i);
}

// The Block of block.h.
class DeviceBlock {
 public:
  __device__ explicit DeviceBlock(uint64_t index) : index_(index) {}
  __device__ uint64_t index() const { return index_; }
  __device__ uint32_t num_threads() const { return blockDim.x; }
  template <typename Body>
  __device__ void Phase(Body&& body) {
    body(threadIdx.x);
    __syncthreads();
  }

 private:
  uint64_t index_;
};

template <typename Kernel>
__global__ void __launch_bounds__(kBlockThreads) RunBlocks(const __grid_constant__ Kernel kernel, uint64_t num_blocks) {
  using Shared = typename Kernel::Shared;
  static_assert(sizeof(Shared) <= kMaxSharedBytes);
  __shared__ alignas(
      16) unsigned char memory[sizeof(Shared)];  // Shared may have initialisers, which __shared__ may not
  for (uint64_t index = blockIdx.x; index < num_blocks; index += gridDim.x) {
    DeviceBlock block(index);
    kernel(block, *reinterpret_cast<Shared*>(memory));
  }
}

template <typename Kernel>
cudaError_t LaunchElements(const Kernel& kernel, cudaStream_t stream) {
  const uint64_t size = kernel.size();
  if (size == 0) return cudaSuccess;
  RunElements<<<GridFor((size + kBlockThreads - 1) / kBlockThreads), kBlockThreads, 0, stream>>>(kernel, size);
  return cudaGetLastError();
}

template <typename Kernel>
cudaError_t LaunchBlocks(const Kernel& kernel, cudaStream_t stream) {
  const uint64_t num_blocks = kernel.num_blocks();
  if (num_blocks == 0) return cudaSuccess;
  RunBlocks<<<GridFor(num_blocks), kBlockThreads, 0, stream>>>(kernel, num_blocks);
  return cudaGetLastError();
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_GRID_CUH_
