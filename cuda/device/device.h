// Device: the interface between the engine's orchestration and a GPU: memory, copies, order, kernels.
#ifndef SPARSEAGG_CUDA_DEVICE_DEVICE_H_
#define SPARSEAGG_CUDA_DEVICE_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cuda/kernels/calls.h"

namespace sparseagg::cuda {

// `driver`: the CUDA version of the driver, as of cudaDriverGetVersion: 12040 for 12.4; 0: there is no driver.
// `runtime`: the CUDA version that the engine was built with, likewise. `release`: DriverRelease.
// A driver runs every minor version of its major version of CUDA, and all older ones.
// Errors: UNAVAILABLE: there is no driver, or it is too old; names the version found and the one needed.
absl::Status CheckDriver(int driver, int runtime, absl::string_view release);

// Returns: the driver's own version, such as "550.54.15", from the file of its kernel module; empty if it is not there.
std::string DriverRelease(const std::string& path = "/proc/driver/nvidia/version");

// A lane is an ordered queue of work. Work on one lane happens in the order of the calls; work on two lanes is
// unordered, except where an event orders it (Record, Wait).
enum class Lane : uint8_t { kCopy, kCompute, kResult };
inline constexpr std::array<Lane, 3> kLanes = {Lane::kCopy, Lane::kCompute, Lane::kResult};

using EventId = uint32_t;

// A device with its memory, three lanes of work and the algorithms that the merge needs. Two implementations:
// CudaDevice, and in tests HostDevice, which runs the same kernels in host memory. Owned by a DeviceEngine, which calls
// Enter, the operation's calls, then Leave.
//
// Calls are asynchronous unless they say `Blocks:`. A returned status may report earlier asynchronous work.
// Errors: RESOURCE_EXHAUSTED: no memory; the device stays usable. Any other error is final: every later call fails too.
// Not thread-safe: one thread at a time.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string description() const = 0;
  // Its number among the CUDA devices of this process.
  virtual int ordinal() const = 0;
  // Called before and after each operation of a thread, to set and restore its current device.
  virtual absl::Status Enter() { return absl::OkStatus(); }
  virtual void Leave() {}

  // Bytes of device memory that the engine may plan with.
  virtual size_t memory_bytes() const = 0;

  // Allocation and release happen in the order of `lane`. Returned memory is uninitialised and aligned to 256 bytes.
  virtual absl::StatusOr<void*> Allocate(size_t bytes, Lane lane) = 0;
  virtual void Free(void* d_memory, Lane lane) = 0;
  // Gives memory that was freed, and that the device keeps for later allocations, back to the system. Blocks: until all
  // lanes have done their work.
  virtual absl::Status Trim() = 0;
  // Pinned host memory, as copies require, aligned to 256 bytes. Its last owner frees it, on any thread, also after the
  // device has gone; never if the device hangs. Requires then: no copies under way. Blocks: slow; allocate once.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(size_t bytes) = 0;
  // Returns: whether host memory is pinned, whoever pinned it, so that copies and kernels of every device may use it
  // where it is. Thread-safe.
  virtual bool IsPinned(const void* memory, size_t bytes) const = 0;

  // Returns: where the memory at an address is, in words, if the kernels of this device must not read it; "" if they
  // may.
  virtual std::string Elsewhere(const void* d_memory) const = 0;

  virtual absl::Status CopyIn(void* d_to, const void* from_pinned, size_t bytes, Lane lane) = 0;
  virtual absl::Status CopyOut(void* to_pinned, const void* d_from, size_t bytes, Lane lane) = 0;
  virtual absl::Status CopyWithin(void* d_to, const void* d_from, size_t bytes, Lane lane) = 0;
  virtual absl::Status Fill(void* d_memory, uint8_t byte, size_t bytes, Lane lane) = 0;

  virtual absl::StatusOr<EventId> CreateEvent() = 0;  // lives as long as the device
  // Marks the current end of `lane` with the event.
  virtual absl::Status Record(EventId event, Lane lane) = 0;
  // Makes later work on `lane` wait for the event, on the device.
  virtual absl::Status Wait(Lane lane, EventId event) = 0;
  // Blocks: until the event, or all work on the lane, has happened.
  virtual absl::Status Await(EventId event) = 0;
  virtual absl::Status AwaitLane(Lane lane) = 0;
  // Blocks: until all work that this process has given the device has happened, on whatever stream.
  virtual absl::Status AwaitAll() = 0;

  // Returns: the lane, as a stream of CUDA's runtime, which others who share the device may wait for or be waited for.
  virtual uintptr_t StreamHandle(Lane lane) const = 0;
  // Makes later work on `lane` wait for what is queued on a stream of someone else so far, on the device.
  virtual absl::Status Follow(uintptr_t stream, Lane lane) = 0;

  // Algorithms, on Lane::kCompute. A call without scratch memory only sets scratch_bytes, to at least 1.
  // Returns: which of the two pairs of buffers (0 or 1) will hold the output.
  virtual absl::StatusOr<int> Sort(SortCall& call) = 0;
  virtual absl::Status Select(SelectCall& call) = 0;
  absl::Status Launch(const KernelCall& call) { return LaunchOn(call, Lane::kCompute); }

  // Kernels, on any lane.
  virtual absl::Status LaunchOn(const KernelCall& call, Lane lane) = 0;
};

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

 private:
  friend class DeviceBuffer;

  Device& device_;
  const size_t budget_bytes_;
  size_t used_bytes_ = 0;
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

#endif  // SPARSEAGG_CUDA_DEVICE_DEVICE_H_
