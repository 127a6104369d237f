// Launchers of element-wise and block kernels on a GPU.
#ifndef SPARSEAGG_CUDA_KERNELS_GRID_CUH_
#define SPARSEAGG_CUDA_KERNELS_GRID_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cub/block/block_scan.cuh>
#include <type_traits>

#include "cuda/kernels/block.h"

namespace sparseagg::cuda {

inline constexpr uint64_t kMaxGridBlocks = (uint64_t{1} << 31) - 1;

// Most blocks on a multiprocessor.
#ifdef __CUDA_ARCH__  // allow(conditional): by architecture
inline constexpr uint32_t kMaxBlocks = __CUDA_ARCH__ < 800                                ? 4
                                       : __CUDA_ARCH__ % 100 == 0 && __CUDA_ARCH__ < 1200 ? 8
                                                                                          : 6;
#else
inline constexpr uint32_t kMaxBlocks = 4;
#endif

// How many blocks an element-wise kernel asks for on a multiprocessor. By default one, so ptxas uses as many registers
// as the kernel needs. Without a number, ptxas spills registers to make room for one block more.
template <typename Kernel, typename = void>
inline constexpr uint32_t kMinBlocksOf = 1;
template <typename Kernel>
inline constexpr uint32_t kMinBlocksOf<Kernel, std::void_t<decltype(Kernel::kMinBlocks)>> =
    Kernel::kMinBlocks < kMaxBlocks ? Kernel::kMinBlocks : kMaxBlocks;

template <typename Kernel>
__global__ void __launch_bounds__(kBlockThreads, kMinBlocksOf<Kernel>)
    RunElements(const __grid_constant__ Kernel kernel, uint64_t size) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += stride) kernel(i);
}

// The Block of block.h.
template <typename Kernel>
class DeviceBlock {
 public:
  using Private = typename Kernel::Private;
  using Scan = cub::BlockScan<uint32_t, Kernel::kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  // `scan`: in shared memory.
  __device__ DeviceBlock(uint64_t index, typename Scan::TempStorage& scan) : index_(index), scan_(scan) {}
  __device__ uint64_t index() const { return index_; }
  __device__ Private& own(uint32_t) { return own_; }
  template <typename Body>
  __device__ void Phase(Body&& body) {
    body(threadIdx.x);
    Wait();
  }
  template <typename Body>
  __device__ void Each(Body&& body) {
    body(threadIdx.x);
  }
  // The barrier between its two phases is the __syncthreads() inside CUB's scan, with any number of warps.
  template <typename Give, typename Take>
  __device__ void ExclusiveSum(Give&& give, Take&& take) {
    uint32_t before = 0;
    uint32_t total = 0;
    Scan(scan_).ExclusiveSum(give(threadIdx.x), before, total);
    take(threadIdx.x, before, total);
    Wait();
  }
  __device__ uint64_t WaitFor(const uint64_t* d_value) const {
    while (true) {
      if (const uint64_t value = LoadRelaxed(d_value); value != 0) return value;
      __nanosleep(20);
    }
  }

 private:
  __device__ static void Wait() {
    if constexpr (Kernel::kThreads == kWarpThreads) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  uint64_t index_;
  typename Scan::TempStorage& scan_;
  Private own_;
};

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks)
    RunBlocks(const __grid_constant__ Kernel kernel, uint64_t num_blocks) {
  using Shared = typename Kernel::Shared;
  static_assert(sizeof(Shared) <= kMaxSharedBytes);
  static_assert(alignof(Shared) <= 16);
  // Bytes, because Shared may have initialisers, and a __shared__ variable must not.
  __shared__ alignas(16) unsigned char memory[sizeof(Shared)];
  __shared__ typename DeviceBlock<Kernel>::Scan::TempStorage scan;
  for (uint64_t index = blockIdx.x; index < num_blocks; index += gridDim.x) {
    DeviceBlock<Kernel> block(index, scan);
    kernel(block, *reinterpret_cast<Shared*>(memory));
  }
}

template <typename Kernel>
cudaError_t LaunchElements(const Kernel& kernel, cudaStream_t stream, uint64_t max_blocks = kMaxGridBlocks) {
  const uint64_t size = kernel.size();
  if (size == 0) return cudaSuccess;
  const uint64_t num_blocks = std::min((size + kBlockThreads - 1) / kBlockThreads, max_blocks);
  RunElements<<<static_cast<unsigned>(num_blocks), kBlockThreads, 0, stream>>>(kernel, size);
  return cudaGetLastError();
}

template <typename Kernel>
cudaError_t LaunchBlocks(const Kernel& kernel, cudaStream_t stream) {
  const uint64_t num_blocks = kernel.num_blocks();
  if (num_blocks == 0) return cudaSuccess;
  RunBlocks<<<static_cast<unsigned>(std::min(num_blocks, kMaxGridBlocks)), Kernel::kThreads, 0, stream>>>(kernel,
                                                                                                          num_blocks);
  return cudaGetLastError();
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_GRID_CUH_
