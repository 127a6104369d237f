// Creates the engine for an NVIDIA GPU, in programs that are built with it. Others load it (cuda/plugin/load.h).
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
  kAll,    // every round that it supports
  kLarge,  // those for which the CPU engine would take longer (cuda/tuning.h)
};

struct CudaEngineOptions {
  CpuEngineOptions cpu;  // of the CPU engine, which runs what the device cannot or should not run
  FallbackReport on_fallback;
  DeviceWork work = DeviceWork::kAll;
  // CUDA devices of this process. CUDA_VISIBLE_DEVICES may hide devices; a MIG instance is a device, and a process sees
  // one.
  int num_devices = 1;                        // the first ones; 0: all
  uint64_t memory_bytes = 0;                  // at most, on each device; 0: nine tenths of what is free there
  uint64_t pinned_bytes = uint64_t{1} << 30;  // of host memory for the results of each device, in use and kept, at most
};

// Returns: whether this build has the engine. If not, it may come from a plug-in (cuda/plugin/load.h).
bool HasCudaEngine();

// Returns: whether this machine has an NVIDIA driver, usable or not. Callers then warn that no GPU is used, because
// somebody probably wants that.
inline bool HasNvidiaDriver() { return !DriverRelease().empty(); }

// Creates the engine. Callable without a driver. Errors: UNAVAILABLE, with the reason: this build has no CUDA engine,
// or this machine has no usable GPU, or fewer than were asked for.
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CudaEngineOptions& options = {});

// Opens the GPU with this number and runs a small kernel and CUB's algorithms on it; also for tests and benchmarks that
// build an engine with other options. Errors: as above; also: no code in this build for that GPU.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int ordinal = 0);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_CUDA_ENGINE_H_
