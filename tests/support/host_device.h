// Device in host memory: stands in for a GPU in tests.
#ifndef SPARSEAGG_TESTS_SUPPORT_HOST_DEVICE_H_
#define SPARSEAGG_TESTS_SUPPORT_HOST_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/device/device.h"

namespace sparseagg::cuda {

struct HostDeviceOptions {
  // Device memory that the engine may use; the default is more than any host has.
  size_t memory_bytes = size_t{1} << 40;
  // 0: work is done at once, threads run in ascending order. Any other value seeds random choices that use every
  // freedom of the interface: threads run in any order, work is delayed until someone waits for it, memory is poisoned
  // when it is allocated and when it is freed.
  uint64_t torture_seed = 0;
  int ordinal = 0;
  // All host memory counts as pinned, so that inputs are copied directly.
  bool all_pinned = false;
  // As of Device::Elsewhere; null: the device reads all memory.
  std::function<std::string(const void*)> elsewhere = nullptr;
  // Runs a kernel; null: with a HostExecutor.
  std::function<void(const KernelCall&)> run_kernel = nullptr;
};

// Runs the same kernel bodies as the GPU, on the calling thread; sorts with std::stable_sort. Not thread-safe.
// Deterministic: same bits as the GPU, for every seed.
class HostDevice : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options = {});
  ~HostDevice() override;

  std::string description() const override { return "kernels on the host"; }
  int ordinal() const override { return options_.ordinal; }
  size_t memory_bytes() const override { return options_.memory_bytes; }

  absl::StatusOr<void*> Allocate(size_t bytes, Lane lane) override;
  void Free(void* d_memory, Lane lane) override;
  absl::Status Trim() override { return AwaitAll(); }  // keeps nothing
  absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(size_t bytes) override;
  bool IsPinned(const void* memory, size_t bytes) const override;
  std::string Elsewhere(const void* d_memory) const override {
    return options_.elsewhere ? options_.elsewhere(d_memory) : "";
  }
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
  uintptr_t StreamHandle(Lane lane) const override {
    return reinterpret_cast<uintptr_t>(&queues_[static_cast<size_t>(lane)]);
  }
  // Others do their work at once.
  absl::Status Follow(uintptr_t, Lane) override { return absl::OkStatus(); }
  absl::StatusOr<int> Sort(SortCall& call) override;
  absl::Status Select(SelectCall& call) override;
  absl::Status LaunchOn(const KernelCall& call, Lane lane) override;

  // Device allocations that have not been freed.
  size_t num_allocations() const { return sizes_.size(); }
  // Pinned allocations likewise, also after the device has gone. Thread-safe.
  std::function<size_t()> PinnedCounter() const {
    return [pinned = pinned_] {
      const std::lock_guard<std::mutex> lock(pinned->mutex);
      return pinned->sizes.size();
    };
  }

 private:
  // A point in a lane's work: everything requested up to a ticket.
  struct Moment {
    Lane lane = Lane::kCompute;
    uint64_t ticket = 0;
  };
  struct Queue {
    std::deque<std::function<void()>> pending;
    uint64_t num_asked = 0;
    uint64_t num_done = 0;
  };

  // Pinned memory, which may outlive the device.
  struct Pinned {
    std::mutex mutex;
    std::map<const std::byte*, size_t> sizes;
  };

  bool tortures() const { return options_.torture_seed != 0; }
  Queue& QueueOf(Lane lane) { return queues_[static_cast<size_t>(lane)]; }
  absl::Status Ask(Lane lane, std::function<void()> work);
  void RunUntil(Moment moment);
  void Spoil(void* memory, size_t bytes);

  HostDeviceOptions options_;
  std::mt19937_64 random_;
  std::array<Queue, kLanes.size()> queues_;
  std::vector<Moment> events_;
  std::unordered_map<void*, size_t> sizes_;
  const std::shared_ptr<Pinned> pinned_;
  size_t used_bytes_ = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_TESTS_SUPPORT_HOST_DEVICE_H_
