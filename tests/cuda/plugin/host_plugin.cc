// A CUDA plug-in whose device is the host: all of the way from a program to the engine, on machines without a GPU.
#include <memory>
#include <utility>
#include <vector>

#include "cuda/cuda_engine.h"
#include "cuda/device_engine.h"
#include "tests/support/host_device.h"

namespace sparseagg::cuda {

constexpr int kNumDevices = 3;  // of a machine with such devices

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CudaEngineOptions& asked) {
  DeviceEngineOptions options;
  options.cpu = asked.cpu;
  if (asked.work == DeviceWork::kLarge) options.tuning.min_merge_values = Tuning::kMinLargeMergeValues;
  options.on_fallback = asked.on_fallback;
  if (asked.num_devices > kNumDevices) return absl::UnavailableError("no usable GPU: there are not so many");
  options.memory_budget_bytes = asked.memory_bytes;
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < (asked.num_devices == 0 ? kNumDevices : asked.num_devices); ++i) {
    devices.push_back(std::make_unique<HostDevice>(HostDeviceOptions{.ordinal = i}));
  }
  return std::make_unique<DeviceEngine>(std::move(devices), options);
}

}  // namespace sparseagg::cuda
