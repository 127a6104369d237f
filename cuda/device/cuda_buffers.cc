#include "cuda/device/cuda_buffers.h"

#include <cstdint>

#include "cuda/device/cuda_status.h"

namespace sparseagg::cuda {

CudaPool::~CudaPool() {
  if (pool_ != nullptr) IgnoreError(cudaMemPoolDestroy(pool_));
}

absl::Status CudaPool::Create(int device) {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  CUDA_RETURN_IF_ERROR(cudaMemPoolCreate(&pool_, &properties));
  uint64_t keep_all = UINT64_MAX;
  CUDA_RETURN_IF_ERROR(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_all));
  // Else one lane's allocation may make it wait for what another lane has freed but not finished with.
  int never = 0;
  return CUDA_TO_STATUS(cudaMemPoolSetAttribute(pool_, cudaMemPoolReuseAllowInternalDependencies, &never));
}

absl::StatusOr<void*> CudaPool::Allocate(size_t bytes, cudaStream_t stream) {
  void* d_memory = nullptr;
  CUDA_RETURN_IF_ERROR(cudaMallocFromPoolAsync(&d_memory, bytes, pool_, stream));
  return d_memory;
}

absl::Status CudaPool::Trim() { return CUDA_TO_STATUS(cudaMemPoolTrimTo(pool_, 0)); }

// Ignores errors: an error here is one of earlier work, and the call that waits for that work returns it.
void CudaPool::Free(void* d_memory, cudaStream_t stream) { IgnoreError(cudaFreeAsync(d_memory, stream)); }

absl::StatusOr<void*> CudaPool::AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  CUDA_RETURN_IF_ERROR(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  return memory;
}

void CudaPool::FreePinned(void* memory) { IgnoreError(cudaFreeHost(memory)); }

}  // namespace sparseagg::cuda
