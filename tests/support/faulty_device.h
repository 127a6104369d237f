// A device that fails at a planned call.
#ifndef SPARSEAGG_TESTS_SUPPORT_FAULTY_DEVICE_H_
#define SPARSEAGG_TESTS_SUPPORT_FAULTY_DEVICE_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/host_device.h"

namespace sparseagg::testing {

enum class Fault {
  kNone,
  kOutOfMemory,      // the planned call has no memory
  kOutOfMemoryNow,   // the planned call and all later allocations have no memory
  kSticky,           // the planned call and all later calls fail
  kSilentThenSticky  // from the planned call on no work is done, and only waiting calls report it, as with asynchronous
                     // errors; after the report all calls fail
};

// Which call fails and how.
struct FaultPlan {
  Fault fault = Fault::kNone;
  uint64_t at_call = 0;  // counted from 1
};

// Forwards calls to another device and counts them. From the planned call on it fails.
class FaultyDevice : public cuda::Device {
 public:
  // What happened. Outlives the engine that owns the device.
  struct Record {
    uint64_t num_calls = 0;
    uint64_t num_sorts = 0;
    uint64_t num_launches = 0;
    uint64_t num_results = 0;  // results written, the last step of a round on the device
    uint64_t num_rounded = 0;  // by the fold of their rows
    uint64_t num_trims = 0;
    uint64_t num_pinned = 0;  // allocations of pinned host memory
    uint64_t num_copies_in = 0;
    uint64_t num_copies_within = 0;
    uint64_t num_copies_out = 0;
    bool faulted = false;
    size_t num_leaked = 0;  // allocations that the destructor found
  };

  FaultyDevice(const cuda::HostDeviceOptions& options, FaultPlan plan, Record* record)
      : FaultyDevice(std::make_unique<cuda::HostDevice>(options), plan, record) {}
  FaultyDevice(std::unique_ptr<cuda::Device> device, FaultPlan plan, Record* record)
      : device_(std::move(device)), plan_(plan), record_(*record) {}
  ~FaultyDevice() override { record_.num_leaked = num_allocations_; }

  std::string description() const override { return "a device made to fail"; }
  int ordinal() const override { return device_->ordinal(); }
  absl::Status Enter() override { return device_->Enter(); }
  void Leave() override { device_->Leave(); }
  size_t memory_bytes() const override { return device_->memory_bytes(); }

  absl::StatusOr<void*> Allocate(size_t bytes, cuda::Lane lane) override {
    if (absl::Status status = Count(true); !status.ok()) return status;
    absl::StatusOr<void*> d_memory = device_->Allocate(bytes, lane);
    num_allocations_ += d_memory.ok();
    return d_memory;
  }
  void Free(void* d_memory, cuda::Lane lane) override {
    --num_allocations_;
    device_->Free(d_memory, lane);
  }
  absl::Status Trim() override {
    ++record_.num_trims;
    return Tell([&] { return device_->Trim(); });
  }
  absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(size_t bytes) override {
    ++record_.num_pinned;
    if (absl::Status status = Count(true); !status.ok()) return status;
    return device_->AllocatePinned(bytes);
  }
  bool IsPinned(const void* memory, size_t bytes) const override { return device_->IsPinned(memory, bytes); }
  std::string Elsewhere(const void* d_memory) const override { return device_->Elsewhere(d_memory); }
  absl::Status CopyIn(void* d_to, const void* from, size_t bytes, cuda::Lane lane) override {
    ++record_.num_copies_in;
    return Do([&] { return device_->CopyIn(d_to, from, bytes, lane); });
  }
  absl::Status CopyOut(void* to, const void* d_from, size_t bytes, cuda::Lane lane) override {
    ++record_.num_copies_out;
    return Do([&] { return device_->CopyOut(to, d_from, bytes, lane); });
  }
  absl::Status CopyWithin(void* d_to, const void* d_from, size_t bytes, cuda::Lane lane) override {
    ++record_.num_copies_within;
    return Do([&] { return device_->CopyWithin(d_to, d_from, bytes, lane); });
  }
  absl::Status Fill(void* d_memory, uint8_t byte, size_t bytes, cuda::Lane lane) override {
    return Do([&] { return device_->Fill(d_memory, byte, bytes, lane); });
  }
  absl::StatusOr<cuda::EventId> CreateEvent() override {
    if (absl::Status status = Count(); !status.ok()) return status;
    return device_->CreateEvent();
  }
  absl::Status Record(cuda::EventId event, cuda::Lane lane) override {
    return Do([&] { return device_->Record(event, lane); });
  }
  absl::Status Wait(cuda::Lane lane, cuda::EventId event) override {
    return Do([&] { return device_->Wait(lane, event); });
  }
  absl::Status Await(cuda::EventId event) override {
    return Tell([&] { return device_->Await(event); });
  }
  absl::Status AwaitLane(cuda::Lane lane) override {
    return Tell([&] { return device_->AwaitLane(lane); });
  }
  uintptr_t StreamHandle(cuda::Lane lane) const override { return device_->StreamHandle(lane); }
  absl::Status Follow(uintptr_t stream, cuda::Lane lane) override {
    return Do([&] { return device_->Follow(stream, lane); });
  }
  absl::Status AwaitAll() override {
    return Tell([&] { return device_->AwaitAll(); });
  }
  absl::StatusOr<int> Sort(cuda::SortCall& call) override {
    record_.num_sorts += call.d_scratch != nullptr;
    if (absl::Status status = Count(); !status.ok()) return status;
    if (silent_) return 0;
    return device_->Sort(call);
  }
  absl::Status Select(cuda::SelectCall& call) override {
    return Do([&] { return device_->Select(call); });
  }
  absl::Status LaunchOn(const cuda::KernelCall& call, cuda::Lane lane) override {
    ++record_.num_launches;
    const auto* const fold = std::get_if<cuda::FoldValues>(&call);
    const bool is_rounded = fold != nullptr && fold->rows.rounded;
    record_.num_rounded += is_rounded;
    record_.num_results += is_rounded || std::holds_alternative<cuda::WriteResult>(call);
    return Do([&] { return device_->LaunchOn(call, lane); });
  }

 private:
  absl::Status Count(bool is_allocation = false) {
    const bool is_now = ++record_.num_calls == plan_.at_call;
    if (is_now && plan_.fault != Fault::kNone) record_.faulted = true;
    if (is_now && (plan_.fault == Fault::kSticky || plan_.fault == Fault::kSilentThenSticky)) {
      // Queued work must end before its memory is freed.
      for (const cuda::Lane lane : cuda::kLanes) device_->AwaitLane(lane).IgnoreError();
    }
    switch (plan_.fault) {
      case Fault::kNone:
        break;
      case Fault::kOutOfMemory:
        if (is_now) return absl::ResourceExhaustedError("made to have no memory");
        break;
      case Fault::kOutOfMemoryNow:
        if (is_now || (record_.faulted && is_allocation)) return absl::ResourceExhaustedError("made to have no memory");
        break;
      case Fault::kSticky:
        if (record_.faulted) return absl::InternalError("made to fail");
        break;
      case Fault::kSilentThenSticky:
        if (is_now) silent_ = true;
        if (told_) return absl::InternalError("made to fail without saying so at once");
        break;
    }
    return absl::OkStatus();
  }
  template <typename Work>
  absl::Status Do(Work work) {
    if (absl::Status status = Count(); !status.ok()) return status;
    return silent_ ? absl::OkStatus() : work();
  }

  // A waiting call, which reports a silent fault.
  template <typename Wait>
  absl::Status Tell(Wait wait) {
    if (absl::Status status = Count(); !status.ok()) return status;
    told_ = silent_;
    return told_ ? absl::InternalError("made to fail without saying so at once") : wait();
  }

  const std::unique_ptr<cuda::Device> device_;
  const FaultPlan plan_;
  struct Record& record_;
  bool silent_ = false;
  bool told_ = false;
  size_t num_allocations_ = 0;
};

inline void PrintTo(Fault fault, std::ostream* out) {
  constexpr const char* kNames[] = {"None", "OutOfMemory", "OutOfMemoryNow", "Sticky", "SilentThenSticky"};
  *out << kNames[static_cast<int>(fault)];
}

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_FAULTY_DEVICE_H_
