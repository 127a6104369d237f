// All allocation with CUDA's runtime: device memory from a pool, and pinned host memory.
#ifndef SPARSEAGG_CUDA_DEVICE_CUDA_BUFFERS_H_
#define SPARSEAGG_CUDA_DEVICE_CUDA_BUFFERS_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparseagg::cuda {

// A pool of device memory, owned by one CudaDevice. Separate from the device's default pool, which other code in the
// process may use. The pool keeps freed memory, so that in steady state nothing is requested from the driver.
// Not thread-safe.
class CudaPool {
 public:
  CudaPool() = default;
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;
  ~CudaPool();

  absl::Status Create(int device);

  // Never destroys the pool, because its device hangs.
  void Abandon() { pool_ = nullptr; }

  // Allocates in the order of `stream`; does not synchronise. Errors: RESOURCE_EXHAUSTED when the device has no memory.
  absl::StatusOr<void*> Allocate(size_t bytes, cudaStream_t stream);
  void Free(void* d_memory, cudaStream_t stream);
  // Returns what is unused to the driver: what was freed in the order of a stream that was synchronised since.
  absl::Status Trim();

  // Pinned host memory. Blocks: synchronises with the driver, and is slow.
  static absl::StatusOr<void*> AllocatePinned(size_t bytes);
  static void FreePinned(void* memory);

 private:
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_CUDA_BUFFERS_H_
