// A CUDA plug-in on a machine whose driver, for CUDA REFUSED_DRIVER, is too old or missing.
#include "cuda/cuda_engine.h"
#include "cuda/device/device.h"

namespace sparseagg::cuda {

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CudaEngineOptions&) {
  return CheckDriver(REFUSED_DRIVER, 13000, "550.54.15");
}

}  // namespace sparseagg::cuda
