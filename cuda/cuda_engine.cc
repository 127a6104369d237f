#include "cuda/cuda_engine.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device/cuda_device.h"
#include "cuda/device_engine.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {

bool HasCudaEngine() { return true; }

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CpuEngineOptions& cpu, FallbackReport on_fallback,
                                                         DeviceWork work, const DeviceChoice& choice) {
  ASSIGN_OR_RETURN(const int num_found, CudaDevice::Count());
  if (choice.num_devices > num_found) {
    return absl::UnavailableError(
        absl::StrCat("too few GPUs: ", choice.num_devices, " were asked for, and CUDA shows ", num_found));
  }
  std::vector<std::unique_ptr<Device>> devices;
  const int num_devices = choice.num_devices == 0 ? num_found : choice.num_devices;
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateCudaDevice(ordinal));
    devices.push_back(std::move(device));
  }
  DeviceEngineOptions options;
  options.memory_budget_bytes = choice.memory_bytes;
  options.cpu = cpu;
  options.tuning.max_pinned_bytes = choice.pinned_bytes;
  if (work == DeviceWork::kLarge) options.tuning.min_merge_values = Tuning::kMinLargeMergeValues;
  options.on_fallback = std::move(on_fallback);
  return std::make_unique<DeviceEngine>(std::move(devices), options);
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int ordinal) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CudaDevice::Create(CudaDevice::kPatience, ordinal));
  return device;
}

}  // namespace sparseagg::cuda
