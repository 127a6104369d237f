// A device that a benchmark looks into: calls, time by kind of work, peak of memory, poisoned allocations.
#ifndef SPARSEAGG_BENCH_GPU_WATCHED_DEVICE_H_
#define SPARSEAGG_BENCH_GPU_WATCHED_DEVICE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device/device.h"

namespace sparseagg::bench {

// Times pieces of work on a device's compute lane, which lie one behind the other. One thread at a time.
class SpanClock {
 public:
  virtual ~SpanClock() = default;

  virtual void Begin() = 0;
  virtual void End(const std::string& name) = 0;
  // Seconds by name, of all spans since the last call. The lane must be idle.
  virtual std::map<std::string, double> Collect() = 0;
};

// By the host's clock, for a device that works at once.
std::unique_ptr<SpanClock> MakeHostClock();

// By events on the compute stream of `device`, which is one of cuda::CreateCudaDevice and must outlive the clock: what
// the GPU takes, without the gaps between. std::runtime_error when CUDA fails or the build has none.
std::unique_ptr<SpanClock> MakeEventClock(cuda::Device& device);

// Calls of one kind to a device, and their size together: bytes of copies, fills and allocations; elements of sorts,
// selections and element-wise kernels.
struct CallCount {
  uint64_t calls = 0;
  uint64_t size = 0;
};
using CallCounts = std::map<std::string, CallCount>;

// What is watched; outlives the device, which an engine owns.
struct Watch {
  // Fill what is allocated with this, so that nothing passes for a result that was not written. Takes time.
  bool poison = false;
  static constexpr uint8_t kPoison = 0xa5;
  SpanClock* clock = nullptr;   // null: time nothing
  CallCounts* calls = nullptr;  // null: count nothing
  size_t used_bytes = 0;
  size_t peak_bytes = 0;
};

// Passes everything on.
class WatchedDevice : public cuda::Device {
 public:
  WatchedDevice(std::unique_ptr<cuda::Device> device, Watch* watch) : device_(std::move(device)), watch_(*watch) {}

  std::string description() const override { return device_->description(); }
  int ordinal() const override { return device_->ordinal(); }
  absl::Status Enter() override { return device_->Enter(); }
  void Leave() override { device_->Leave(); }
  size_t memory_bytes() const override { return device_->memory_bytes(); }

  absl::StatusOr<void*> Allocate(size_t bytes, cuda::Lane lane) override;
  void Free(void* d_memory, cuda::Lane lane) override;
  absl::Status Trim() override { return device_->Trim(); }
  absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(size_t bytes) override {
    Count("allocate_pinned", bytes);
    return device_->AllocatePinned(bytes);
  }
  bool IsPinned(const void* memory, size_t bytes) const override { return device_->IsPinned(memory, bytes); }
  std::string Elsewhere(const void* d_memory) const override { return device_->Elsewhere(d_memory); }

  absl::Status CopyIn(void* d_to, const void* from_pinned, size_t bytes, cuda::Lane lane) override {
    return Watched("copy_in", bytes, lane, [&] { return device_->CopyIn(d_to, from_pinned, bytes, lane); });
  }
  absl::Status CopyOut(void* to_pinned, const void* d_from, size_t bytes, cuda::Lane lane) override {
    return Watched("copy_out", bytes, lane, [&] { return device_->CopyOut(to_pinned, d_from, bytes, lane); });
  }
  absl::Status CopyWithin(void* d_to, const void* d_from, size_t bytes, cuda::Lane lane) override {
    return Watched("copy_within", bytes, lane, [&] { return device_->CopyWithin(d_to, d_from, bytes, lane); });
  }
  absl::Status Fill(void* d_memory, uint8_t byte, size_t bytes, cuda::Lane lane) override {
    return Watched("fill", bytes, lane, [&] { return device_->Fill(d_memory, byte, bytes, lane); });
  }

  absl::StatusOr<cuda::EventId> CreateEvent() override { return device_->CreateEvent(); }
  absl::Status Record(cuda::EventId event, cuda::Lane lane) override {
    Count("record");
    return device_->Record(event, lane);
  }
  absl::Status Wait(cuda::Lane lane, cuda::EventId event) override {
    Count("wait");
    return device_->Wait(lane, event);
  }
  absl::Status Await(cuda::EventId event) override {
    Count("await");
    return device_->Await(event);
  }
  absl::Status AwaitLane(cuda::Lane lane) override {
    Count("await");
    return device_->AwaitLane(lane);
  }
  absl::Status AwaitAll() override {
    Count("await");
    return device_->AwaitAll();
  }

  uintptr_t StreamHandle(cuda::Lane lane) const override { return device_->StreamHandle(lane); }
  absl::Status Follow(uintptr_t stream, cuda::Lane lane) override { return device_->Follow(stream, lane); }

  absl::StatusOr<int> Sort(cuda::SortCall& call) override {
    if (call.d_scratch == nullptr) return device_->Sort(call);
    return Watched("sort", call.count, cuda::Lane::kCompute, [&] { return device_->Sort(call); });
  }
  absl::Status Select(cuda::SelectCall& call) override {
    if (call.d_scratch == nullptr) return device_->Select(call);
    return Watched("select", call.count, cuda::Lane::kCompute, [&] { return device_->Select(call); });
  }
  absl::Status LaunchOn(const cuda::KernelCall& call, cuda::Lane lane) override;

 private:
  void Count(const char* name, uint64_t size = 0) {
    if (watch_.calls == nullptr) return;
    CallCount& count = (*watch_.calls)[name];
    ++count.calls;
    count.size += size;
  }

  template <typename Work>
  auto Watched(const char* name, uint64_t size, cuda::Lane lane, Work work) -> decltype(work()) {
    Count(name, size);
    if (watch_.clock == nullptr || lane != cuda::Lane::kCompute) return work();
    watch_.clock->Begin();
    auto result = work();
    watch_.clock->End(name);
    return result;
  }

  const std::unique_ptr<cuda::Device> device_;
  Watch& watch_;
  std::unordered_map<void*, size_t> sizes_;
};

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_GPU_WATCHED_DEVICE_H_
