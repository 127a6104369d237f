// The functions of cuda_engine.h in builds without CUDA.
#include "absl/status/status.h"
#include "cuda/cuda_engine.h"

namespace sparseagg::cuda {

bool HasCudaEngine() { return false; }

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CudaEngineOptions&) {
  return absl::UnavailableError("this build has no CUDA engine");
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int) { return CreateCudaEngine().status(); }

}  // namespace sparseagg::cuda
