// The engine on an NVIDIA GPU.
#ifndef SPARSEAGG_CUDA_CUDA_ENGINE_H_
#define SPARSEAGG_CUDA_CUDA_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "host/engine.h"

namespace sparseagg::cuda {

// UNAVAILABLE, with the reason, when this build has no CUDA engine or this machine no GPU that it can use. Needs no
// driver to be called.
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine();

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_CUDA_ENGINE_H_
