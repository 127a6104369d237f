// DeviceMemory: a budget of device memory; DeviceBuffer: an owned allocation in it.
#ifndef SPARSEAGG_CUDA_DEVICE_DEVICE_MEMORY_H_
#define SPARSEAGG_CUDA_DEVICE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cuda/device/device.h"

namespace sparseagg::cuda {

// A RESOURCE_EXHAUSTED error that smaller batches cannot avoid, so the operation is not retried on the device.
absl::Status NoRoom(absl::string_view message);
bool IsNoRoom(const absl::Status& status);

class DeviceBuffer;

// Allocates device memory and keeps the total within a budget. Owned by a Session. Not thread-safe.
class DeviceMemory {
 public:
  DeviceMemory(Device& device, size_t budget_bytes) : device_(device), budget_bytes_(budget_bytes) {}

  // Allocates uninitialised memory for `lane`; other lanes may use it after an event. Does not synchronise.
  // Errors: RESOURCE_EXHAUSTED beyond the budget, or when the device has no memory.
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, Lane lane);

  size_t budget_bytes() const { return budget_bytes_; }
  size_t used_bytes() const { return used_bytes_; }
  size_t peak_bytes() const { return peak_bytes_; }

 private:
  friend class DeviceBuffer;

  Device& device_;
  const size_t budget_bytes_;
  size_t used_bytes_ = 0;
  size_t peak_bytes_ = 0;
};

// Owns device memory; frees it in the order of its lane, after the work requested before. Does not synchronise. Must
// not outlive its DeviceMemory. Not thread-safe.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer() { Release(); }

  void Release();
  // The memory is used on `lane` from now on. Requires: `lane` waits for the previous lane's work.
  void HandTo(Lane lane) { lane_ = lane; }
  // Keeps only the first `bytes` in use. The memory stays allocated as a whole. Requires: bytes ≤ bytes().
  void Shrink(size_t bytes) { bytes_ = bytes; }
  size_t bytes() const { return bytes_; }
  void* get() const { return d_memory_; }
  // Returns: the address as T*, or null if nothing was allocated.
  template <typename T>
  T* as() const {
    return static_cast<T*>(d_memory_);
  }

 private:
  friend class DeviceMemory;

  DeviceMemory* owner_ = nullptr;
  void* d_memory_ = nullptr;
  size_t allocated_bytes_ = 0;
  size_t bytes_ = 0;
  Lane lane_ = Lane::kCompute;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_DEVICE_MEMORY_H_
