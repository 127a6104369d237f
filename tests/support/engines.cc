#include "tests/support/engines.h"

#include <utility>

#include "cuda/cuda_engine.h"
#include "host/cpu/cpu_engine.h"

namespace sparseagg::testing {

absl::Status CudaStatus() {
  absl::StatusOr<std::unique_ptr<Engine>> engine = cuda::CreateCudaEngine();
  if (!engine.ok()) return engine.status();
  return (*engine)->Probe();
}

std::vector<EngineCase> AvailableEngines() {
  std::vector<EngineCase> engines;
  for (const int num_threads : {1, 2}) {
    engines.push_back(
        {"cpu" + std::to_string(num_threads), [num_threads] { return CreateCpuEngine({.num_threads = num_threads}); }});
  }
  if (CudaStatus().ok()) {
    engines.push_back({"cuda", [] { return *cuda::CreateCudaEngine(); }});
  }
  return engines;
}

}  // namespace sparseagg::testing
