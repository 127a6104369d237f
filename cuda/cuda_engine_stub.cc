// Stands in for the CUDA engine in builds without it.
#include "absl/status/status.h"
#include "cuda/cuda_engine.h"

namespace sparseagg::cuda {

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CpuEngineOptions&, FallbackReport) {
  return absl::UnavailableError("this build has no CUDA engine");
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice() { return CreateCudaEngine().status(); }

}  // namespace sparseagg::cuda
