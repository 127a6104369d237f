#include "cuda/cuda_engine.h"

#include <utility>

#include "cuda/device/cuda_device.h"
#include "cuda/device_engine.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {

bool HasCudaEngine() { return true; }

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CpuEngineOptions& cpu, FallbackReport on_fallback,
                                                         DeviceWork work) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateCudaDevice());
  DeviceEngineOptions options;
  options.cpu = cpu;
  if (work == DeviceWork::kLarge) options.tuning.min_merge_values = Tuning::kMinLargeMergeValues;
  options.on_fallback = std::move(on_fallback);
  return std::make_unique<DeviceEngine>(std::move(device), options);
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice() {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CudaDevice::Create());
  return device;
}

}  // namespace sparseagg::cuda
