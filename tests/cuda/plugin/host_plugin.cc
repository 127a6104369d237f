// A CUDA plug-in whose device is the host: all of the way from a program to the engine, on machines without a GPU.
#include <memory>
#include <utility>

#include "cuda/cuda_engine.h"
#include "cuda/device/host_device.h"
#include "cuda/device_engine.h"

namespace sparseagg::cuda {

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CpuEngineOptions& cpu, FallbackReport on_fallback,
                                                         DeviceWork work) {
  DeviceEngineOptions options;
  options.cpu = cpu;
  if (work == DeviceWork::kLarge) options.tuning.min_merge_values = Tuning::kMinLargeMergeValues;
  options.on_fallback = std::move(on_fallback);
  return std::make_unique<DeviceEngine>(std::make_unique<HostDevice>(), options);
}

}  // namespace sparseagg::cuda
