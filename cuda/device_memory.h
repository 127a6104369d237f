// Device memory within a budget, and buffers in it.
#ifndef SPARSEAGG_CUDA_DEVICE_MEMORY_H_
#define SPARSEAGG_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cuda/device.h"

namespace sparseagg::cuda {

// RESOURCE_EXHAUSTED that smaller batches cannot mend, so that nobody tries.
absl::Status NoRoom(absl::string_view message);
bool IsNoRoom(const absl::Status& status);

class DeviceBuffer;

// Counts what is allocated. One thread at a time.
class DeviceMemory {
 public:
  DeviceMemory(Device& device, size_t budget_bytes) : device_(device), budget_bytes_(budget_bytes) {}

  // Uninitialised. RESOURCE_EXHAUSTED beyond the budget, or where the device has no more. Does not synchronise; the
  // memory may be used on `lane` at once, elsewhere after an event.
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

// Owns device memory, and gives it back behind the work that its lane was asked for before. Does not synchronise. Must
// not outlive its DeviceMemory.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer() { Release(); }

  void Release();
  // From now on the memory is used on `lane`, which has waited for the one before.
  void HandTo(Lane lane) { lane_ = lane; }
  size_t bytes() const { return bytes_; }
  void* get() const { return d_memory_; }
  // Null if nothing was allocated.
  template <typename T>
  T* as() const {
    return static_cast<T*>(d_memory_);
  }

 private:
  friend class DeviceMemory;

  DeviceMemory* owner_ = nullptr;
  void* d_memory_ = nullptr;
  size_t bytes_ = 0;
  Lane lane_ = Lane::kCompute;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_MEMORY_H_
