#include "cuda/cuda_engine.h"

#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cuda/device/cuda_device.h"
#include "cuda/device_engine.h"
#include "cuda/merge/sorter.h"
#include "cuda/transfer/session.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {
namespace {

// More entries than CUB sorts in one block; for so few it has other kernels.
constexpr uint32_t kTrialEntries = 1 << 15;

// Runs one of our kernels, both sorts and the selections on zeros, and ignores the output, which tests check. CUB keeps
// the error of its first use for as long as the process lives. So the first use is here, before other processes can
// take the device memory that it needs.
absl::Status UseAlgorithms(Device& device) {
  RETURN_IF_ERROR(device.Enter());
  const absl::Cleanup leave = [&device] { device.Leave(); };
  Session session(device, device.memory_bytes(), Tuning());
  const auto zeros = [&](size_t bytes) -> absl::StatusOr<DeviceBuffer> {
    ASSIGN_OR_RETURN(DeviceBuffer buffer, session.Allocate(bytes));
    RETURN_IF_ERROR(device.Fill(buffer.get(), 0, bytes, Lane::kCompute));
    return buffer;
  };
  for (const uint32_t key_bytes : {4, 8}) {
    ASSIGN_OR_RETURN(DeviceBuffer keys, zeros(kTrialEntries * key_bytes));
    RETURN_IF_ERROR(
        StartSort(session, std::move(keys), kTrialEntries, key_bytes, static_cast<int>(8 * key_bytes)).status());
  }
  ASSIGN_OR_RETURN(const DeviceBuffer flags, zeros(kTrialEntries));
  return session.Select(flags, kTrialEntries).status();
}

}  // namespace

bool HasCudaEngine() { return true; }

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(const CudaEngineOptions& asked) {
  ASSIGN_OR_RETURN(const int num_found, CudaDevice::Count());
  if (asked.num_devices > num_found) {
    return absl::UnavailableError(
        absl::StrCat("too few GPUs: ", asked.num_devices, " were asked for, and CUDA shows ", num_found));
  }
  std::vector<std::unique_ptr<Device>> devices;
  const int num_devices = asked.num_devices == 0 ? num_found : asked.num_devices;
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateCudaDevice(ordinal));
    devices.push_back(std::move(device));
  }
  DeviceEngineOptions options;
  options.memory_budget_bytes = asked.memory_bytes;
  options.cpu = asked.cpu;
  options.tuning.max_pinned_bytes = asked.pinned_bytes;
  if (asked.work == DeviceWork::kLarge) options.tuning.min_merge_values = Tuning::kMinLargeMergeValues;
  options.on_fallback = asked.on_fallback;
  return std::make_unique<DeviceEngine>(std::move(devices), options);
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int ordinal) {
  RETURN_IF_ERROR(CudaDevice::Count().status());
  absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(CudaDevice::kPatience, ordinal);
  absl::Status status = device.status();
  if (status.ok()) status = UseAlgorithms(**device);
  if (status.ok()) return *std::move(device);
  return absl::UnavailableError(
      absl::StrCat("no usable GPU: ", ordinal == 0 ? "" : absl::StrCat("device ", ordinal, ": "), status.message()));
}

}  // namespace sparseagg::cuda
