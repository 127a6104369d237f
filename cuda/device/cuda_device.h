// Device on an NVIDIA GPU.
#ifndef SPARSEAGG_CUDA_DEVICE_CUDA_DEVICE_H_
#define SPARSEAGG_CUDA_DEVICE_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device/device.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {

// Converts a CUDA error. The message has the error's name and text, the call, the file and the line. Clears the
// thread's last error, which the next launch would report as its own; an error that the device cannot recover from
// stays all the same, and every later call returns it.
// Returns: OK for cudaSuccess; RESOURCE_EXHAUSTED for cudaErrorMemoryAllocation; otherwise INTERNAL.
absl::Status ToStatus(cudaError_t error, const char* call, const char* file, int line);

// For calls whose error nobody needs: clears it likewise.
void IgnoreError(cudaError_t error);

}  // namespace sparseagg::cuda

#define CUDA_TO_STATUS(call) ::sparseagg::cuda::ToStatus((call), #call, __FILE__, __LINE__)
#define CUDA_RETURN_IF_ERROR(call) RETURN_IF_ERROR(CUDA_TO_STATUS(call))

namespace sparseagg::cuda {

// One of the GPUs that CUDA shows this process (CUDA_VISIBLE_DEVICES). Each lane is one non-blocking stream, so neither
// waits for CUDA's default stream. Owned by a DeviceEngine. Not thread-safe: one thread at a time.
class CudaDevice : public Device {
 public:
  // Returns: the number of GPUs, at least 1. Errors: UNAVAILABLE: no driver, or one that is too old; no GPU.
  static absl::StatusOr<int> Count();
  // Opens the GPU with this number. Errors: of CUDA; UNAVAILABLE: it has no memory pools. Requires: Count().
  // `patience`: a wait for the device that takes longer is the device's last: it hangs.
  static constexpr std::chrono::seconds kPatience{60};
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(std::chrono::nanoseconds patience = kPatience,
                                                            int ordinal = 0);
  ~CudaDevice() override;

  std::string description() const override { return description_; }
  int ordinal() const override { return ordinal_; }
  absl::Status Enter() override;
  void Leave() override;
  size_t memory_bytes() const override { return memory_bytes_; }

  absl::StatusOr<void*> Allocate(size_t bytes, Lane lane) override;
  void Free(void* d_memory, Lane lane) override;
  absl::Status Trim() override;
  absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(size_t bytes) override;
  bool IsPinned(const void* memory, size_t bytes) const override;
  std::string Elsewhere(const void* d_memory) const override;
  absl::Status CopyIn(void* d_to, const void* from_pinned, size_t bytes, Lane lane) override;
  absl::Status CopyOut(void* to_pinned, const void* d_from, size_t bytes, Lane lane) override;
  absl::Status CopyWithin(void* d_to, const void* d_from, size_t bytes, Lane lane) override;
  absl::Status Fill(void* d_memory, uint8_t byte, size_t bytes, Lane lane) override;
  absl::StatusOr<EventId> CreateEvent() override;
  absl::Status Record(EventId event, Lane lane) override;
  absl::Status Wait(Lane lane, EventId event) override;
  absl::Status Await(EventId event) override;
  absl::Status AwaitLane(Lane lane) override;
  absl::Status AwaitAll() override;
  uintptr_t StreamHandle(Lane lane) const override { return reinterpret_cast<uintptr_t>(StreamOf(lane)); }
  absl::Status Follow(uintptr_t stream, Lane lane) override;
  absl::StatusOr<int> Sort(SortCall& call) override;
  absl::Status Select(SelectCall& call) override;
  absl::Status LaunchOn(const KernelCall& call, Lane lane) override;

  // The lane's stream, for events that measure time.
  cudaStream_t StreamOf(Lane lane) const { return streams_[static_cast<size_t>(lane)]; }

 private:
  CudaDevice(std::chrono::nanoseconds patience, int ordinal)
      : ordinal_(ordinal), previous_(ordinal), patience_(patience) {}
  // Polls until `query` no longer says that work is under way. Errors: UNAVAILABLE if that takes too long; then the
  // device hangs, and every later call fails at once. What it may still use is never freed.
  absl::Status Await(cudaError_t (*query)(void*), void* handle, const char* what);
  absl::Status Start();

  const int ordinal_;
  std::string description_;
  size_t memory_bytes_ = 0;
  int previous_;  // the calling thread's current device before Enter; Leave restores it
  const std::chrono::nanoseconds patience_;
  absl::Status hung_;  // why the device is not waited for any more
  const std::shared_ptr<std::atomic<bool>> hangs_ = std::make_shared<std::atomic<bool>>(false);  // for pinned memory
  // Separate from the device's default pool, which other code in the process may use. Keeps freed memory, so that in
  // steady state nothing is requested from the driver.
  cudaMemPool_t pool_ = nullptr;
  std::array<cudaStream_t, kLanes.size()> streams_ = {};
  std::vector<cudaEvent_t> events_;
  std::optional<EventId> followed_;  // the end of a stream that a lane follows
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_CUDA_DEVICE_H_
