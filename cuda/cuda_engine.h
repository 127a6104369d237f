// Creates the engine for an NVIDIA GPU. The only header of this module that other modules include.
#ifndef SPARSEAGG_CUDA_CUDA_ENGINE_H_
#define SPARSEAGG_CUDA_CUDA_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device/device.h"
#include "host/cpu/cpu_engine.h"
#include "host/engine.h"

namespace sparseagg::cuda {

// Receives the reason why an operation ran without the device: RESOURCE_EXHAUSTED (no memory for this operation), or,
// once, the error after which the device is not used any more. Called on the thread that runs the operation.
using FallbackReport = std::function<void(const absl::Status& reason)>;

// Which rounds the device merges.
enum class DeviceWork : uint8_t {
  kAll,    // all
  kLarge,  // those for which the CPU engine would take longer (cuda/tuning.h)
};

// Which devices the engine uses, of those that CUDA shows this process: CUDA_VISIBLE_DEVICES hides some, and a part of
// a GPU (MIG) is a device.
struct DeviceChoice {
  int num_devices = 1;        // the first ones; 0: all
  uint64_t memory_bytes = 0;  // at most, on each device; 0: nine tenths of what is free there
};

// Returns: whether this build has the engine. If not, it may come from a plug-in (cuda/plugin/load.h).
bool HasCudaEngine();

// Returns: whether this machine has an NVIDIA driver, usable or not: then there is a GPU that somebody wants to be
// used.
inline bool HasNvidiaDriver() { return !DriverRelease().empty(); }

// Creates the engine. `cpu` configures the CPU engine that takes over when the device fails. Callable without a driver.
// Errors: UNAVAILABLE, with the reason: this build has no CUDA engine, or this machine has no usable GPU, or fewer than
// were asked for.
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CpuEngineOptions& cpu = {},
                                                         FallbackReport on_fallback = {},
                                                         DeviceWork work = DeviceWork::kAll,
                                                         const DeviceChoice& choice = {});

// Creates only the device, for tests and benchmarks that build an engine with other options. Errors: as above.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int ordinal = 0);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_CUDA_ENGINE_H_
