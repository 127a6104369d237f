// The engine on an NVIDIA GPU.
#ifndef SPARSEAGG_CUDA_CUDA_ENGINE_H_
#define SPARSEAGG_CUDA_CUDA_ENGINE_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device.h"
#include "host/cpu/cpu_engine.h"
#include "host/engine.h"

namespace sparseagg::cuda {

// Told why an operation is done without the device: that it had no memory for it (RESOURCE_EXHAUSTED), or, once, that
// it failed for good. Called in the thread that works for the round.
using FallbackReport = std::function<void(const absl::Status& reason)>;

// UNAVAILABLE, with the reason, when this build has no CUDA engine or this machine no GPU that it can use. Needs no
// driver to be called.
// `cpu`: of the CPU engine, which takes over when the device fails.
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CpuEngineOptions& cpu = {},
                                                         FallbackReport on_fallback = {});

// The device of such an engine, for tests and benchmarks that need other options. The same errors.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice();

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_CUDA_ENGINE_H_
