// The engines of this process and the threads that prepare updates for them, shared by its rounds.
#ifndef SPARSEAGG_PYTHON_ENGINE_LOCAL_RUNTIME_H_
#define SPARSEAGG_PYTHON_ENGINE_LOCAL_RUNTIME_H_

#include <tbb/task_arena.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/engine.h"

namespace sparseagg::python {

// An engine, and the threads that prepare updates for it. All runtimes on the device share one engine.
struct LocalRuntime {
  LocalRuntime(Engine& its_engine, bool is_device, int threads)
      : engine(its_engine), device(is_device), arena(threads > 0 ? threads : tbb::task_arena::automatic) {
    arena.initialize();
  }
  std::string Describe() const;  // "cpu (CPU, 2 threads)"

  Engine& engine;
  const bool device;
  tbb::task_arena arena;
  bool is_lost = false;  // its device belongs to the process that this one was forked from
};

// Returns: the runtime of all rounds with as many threads (0: one per core), on the CPU or on the device. Never
// destroyed, because threads may outlive main.
// Errors, on the device: FAILED_PRECONDITION: LoadCuda has not succeeded, or the process was forked since.
// Thread-safe.
absl::StatusOr<LocalRuntime*> LocalRuntimeOf(int threads, bool device);

// Returns: the error for a device in a process that was forked from one that had used it.
absl::Status CudaLostInFork();

// Loads the CUDA engine from its plug-in library, for all rounds of the process that are on the device. Does nothing
// once that has succeeded.
// Returns: the engine's name and description.
// Errors: as of cuda::LoadCudaEngine; the next call tries again. FAILED_PRECONDITION: as of LocalRuntimeOf.
// Thread-safe.
absl::StatusOr<std::string> LoadCuda(const std::string& path);

// Gives back what the CUDA engine of LoadCuda keeps (Engine::ReleaseDeviceMemory), if there is one in this process.
void ReleaseDeviceMemory();

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_LOCAL_RUNTIME_H_
