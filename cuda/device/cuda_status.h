// CUDA errors as statuses.
#ifndef SPARSEAGG_CUDA_DEVICE_CUDA_STATUS_H_
#define SPARSEAGG_CUDA_DEVICE_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {

// Converts a CUDA error. The message has the error's name and text, the call, the file and the line. Clears the
// thread's last error, which the next launch would report as its own; an error that the device cannot recover from
// stays all the same, and every later call returns it.
// Returns: OK for cudaSuccess; RESOURCE_EXHAUSTED for cudaErrorMemoryAllocation; otherwise INTERNAL.
absl::Status ToStatus(cudaError_t error, const char* call, const char* file, int line);

// For calls whose error nobody needs: clears it likewise.
void IgnoreError(cudaError_t error);

}  // namespace sparseagg::cuda

#define CUDA_TO_STATUS(call) ::sparseagg::cuda::ToStatus((call), #call, __FILE__, __LINE__)
#define CUDA_RETURN_IF_ERROR(call) RETURN_IF_ERROR(CUDA_TO_STATUS(call))

#endif  // SPARSEAGG_CUDA_DEVICE_CUDA_STATUS_H_
