// The engine on an NVIDIA GPU.
#ifndef SPARSEAGG_CUDA_CUDA_ENGINE_H_
#define SPARSEAGG_CUDA_CUDA_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "host/engine.h"

namespace sparseagg::cuda {

// UNAVAILABLE when this build has no CUDA engine.
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine();

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_CUDA_ENGINE_H_
