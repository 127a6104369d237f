// A device that a benchmark looks into: time by kind of work, peak of memory, poisoned allocations.
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

// What is watched; outlives the device, which an engine owns.
struct Watch {
  // Fill what is allocated with this, so that nothing passes for a result that was not written. Takes time.
  bool poison = false;
  static constexpr uint8_t kPoison = 0xa5;
  SpanClock* clock = nullptr;  // null: time nothing
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
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override { return device_->AllocatePinned(bytes); }
  void FreePinned(void* memory) override { device_->FreePinned(memory); }
  bool IsPinned(const void* memory, size_t bytes) const override { return device_->IsPinned(memory, bytes); }
  std::string Elsewhere(const void* d_memory) const override { return device_->Elsewhere(d_memory); }

  absl::Status CopyIn(void* d_to, const void* from_pinned, size_t bytes, cuda::Lane lane) override {
    return device_->CopyIn(d_to, from_pinned, bytes, lane);
  }
  absl::Status CopyOut(void* to_pinned, const void* d_from, size_t bytes, cuda::Lane lane) override {
    return device_->CopyOut(to_pinned, d_from, bytes, lane);
  }
  absl::Status CopyWithin(void* d_to, const void* d_from, size_t bytes, cuda::Lane lane) override {
    return Timed("copy", lane, [&] { return device_->CopyWithin(d_to, d_from, bytes, lane); });
  }
  absl::Status Fill(void* d_memory, uint8_t byte, size_t bytes, cuda::Lane lane) override {
    return Timed("fill", lane, [&] { return device_->Fill(d_memory, byte, bytes, lane); });
  }

  absl::StatusOr<cuda::EventId> CreateEvent() override { return device_->CreateEvent(); }
  absl::Status Record(cuda::EventId event, cuda::Lane lane) override { return device_->Record(event, lane); }
  absl::Status Wait(cuda::Lane lane, cuda::EventId event) override { return device_->Wait(lane, event); }
  absl::Status Await(cuda::EventId event) override { return device_->Await(event); }
  absl::Status AwaitLane(cuda::Lane lane) override { return device_->AwaitLane(lane); }
  absl::Status AwaitAll() override { return device_->AwaitAll(); }

  uintptr_t StreamHandle(cuda::Lane lane) const override { return device_->StreamHandle(lane); }
  absl::Status Follow(uintptr_t stream, cuda::Lane lane) override { return device_->Follow(stream, lane); }

  absl::StatusOr<size_t> SortScratchBytes(const cuda::SortCall& call) override {
    return device_->SortScratchBytes(call);
  }
  absl::StatusOr<int> Sort(const cuda::SortCall& call) override {
    return Timed("sort", cuda::Lane::kCompute, [&] { return device_->Sort(call); });
  }
  absl::StatusOr<size_t> SelectScratchBytes(const cuda::SelectCall& call) override {
    return device_->SelectScratchBytes(call);
  }
  absl::Status Select(const cuda::SelectCall& call) override {
    return Timed("select", cuda::Lane::kCompute, [&] { return device_->Select(call); });
  }
  absl::Status LaunchOn(const cuda::KernelCall& call, cuda::Lane lane) override;

 private:
  template <typename Work>
  auto Timed(const std::string& name, cuda::Lane lane, Work work) -> decltype(work()) {
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
