// The one place that allocates with CUDA.
#ifndef SPARSEAGG_CUDA_CUDA_BUFFERS_H_
#define SPARSEAGG_CUDA_CUDA_BUFFERS_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparseagg::cuda {

// A pool of device memory of its own, apart from the device's default one, which other code in the process may use. It
// keeps what was given back, so that in steady state nothing is taken from the driver.
class CudaPool {
 public:
  CudaPool() = default;
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;
  ~CudaPool();

  absl::Status Create(int device);

  // Stream-ordered; does not synchronise. RESOURCE_EXHAUSTED when the device has no more.
  absl::StatusOr<void*> Allocate(size_t bytes, cudaStream_t stream);
  void Free(void* d_memory, cudaStream_t stream);

  // Synchronous.
  static absl::StatusOr<void*> AllocatePinned(size_t bytes);
  static void FreePinned(void* memory);

 private:
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_CUDA_BUFFERS_H_
