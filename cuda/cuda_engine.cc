#include "cuda/cuda_engine.h"

#include <utility>

#include "cuda/cuda_device.h"
#include "cuda/device_engine.h"
#include "host/status_macros.h"

namespace sparseagg::cuda {

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine() {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateCudaDevice());
  return std::make_unique<DeviceEngine>(std::move(device), DeviceEngineOptions());
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice() {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CudaDevice::Create());
  return device;
}

}  // namespace sparseagg::cuda
