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
  const auto allocate = [&] { return CUDA_TO_STATUS(cudaMallocFromPoolAsync(&d_memory, bytes, pool_, stream)); };
  absl::Status status = allocate();
  if (absl::IsResourceExhausted(status)) {
    // What was freed is unused once the work before it is done, on whichever stream.
    CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
    CUDA_RETURN_IF_ERROR(cudaMemPoolTrimTo(pool_, 0));
    status = allocate();
  }
  RETURN_IF_ERROR(status);
  return d_memory;
}

// Ignores errors: an error here is one of earlier work, and the call that waits for that work returns it.
void CudaPool::Free(void* d_memory, cudaStream_t stream) { IgnoreError(cudaFreeAsync(d_memory, stream)); }

absl::StatusOr<void*> CudaPool::AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  CUDA_RETURN_IF_ERROR(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  return memory;
}

void CudaPool::FreePinned(void* memory) { IgnoreError(cudaFreeHost(memory)); }

}  // namespace sparseagg::cuda
