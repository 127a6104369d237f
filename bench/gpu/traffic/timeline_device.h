// A model of when the work of the CUDA engine would happen: what a round fed from host memory takes.
#ifndef SPARSEAGG_BENCH_GPU_TRAFFIC_TIMELINE_DEVICE_H_
#define SPARSEAGG_BENCH_GPU_TRAFFIC_TIMELINE_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/device/device.h"

namespace sparseagg::bench {

// What the model assumes of a machine. Nothing here was measured.
struct MachineModel {
  double link_bytes_per_s = 55e9;             // of PCIe 5 x16, in each direction at a time
  double fetch_bytes_per_s = 0.9 * 55e9;      // of the same, in whole lines of 128 bytes that a kernel reads
  double memory_bytes_per_s = 0.9 * 3.35e12;  // of the device; of an H100 SXM
  double thread_copy_bytes_per_s = 8e9;       // of one host thread, within host memory
  int num_copy_threads = 16;
  double most_copy_bytes_per_s = 100e9;  // of all host threads
  double work_call_s = 2e-6;             // of the host, for each kernel and each copy that it asks for
  double call_s = 1e-6;                  // of the host, for each other call: memory, events
  double launch_s = 3e-6;                // of a lane, for each kernel
  double copy_s = 1.5e-6;                // of the link, for each copy
  double wait_s = 8e-6;                  // until a host that has waited goes on
};

// The times at which lanes, link and host would be done, in seconds, and what was moved.
struct Timeline {
  double host = 0;
  double copies = 0;  // of the host's threads, out of buffers
  std::array<double, cuda::kLanes.size()> lanes = {};
  double link_in = 0;
  double link_out = 0;
  uint64_t in_bytes = 0;   // over the link, to the device
  uint64_t out_bytes = 0;  // from it
};

// Works on a counting device and keeps the time. Every piece of work starts when its lane, what it waits for, what it
// uses (a direction of the link) and the host that asks for it are ready. The host waits while buffers are filled;
// threads empty them in the meantime, but not while buffers are filled. Other work of the host takes no time. All host
// memory counts as pinned. Not thread-safe.
class TimelineDevice : public cuda::Device {
 public:
  // `timeline` outlives the device.
  explicit TimelineDevice(Timeline* timeline);

  // Begins at time 0 again, with all work so far done.
  void Restart();

  std::string description() const override { return "a model"; }
  size_t memory_bytes() const override { return device_->memory_bytes(); }
  absl::StatusOr<void*> Allocate(size_t bytes, cuda::Lane lane) override;
  void Free(void* d_memory, cuda::Lane lane) override;
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override { return device_->AllocatePinned(bytes); }
  void FreePinned(void* memory) override { device_->FreePinned(memory); }
  bool IsPinned(const void*, size_t) const override { return true; }
  absl::Status Pin(const void*, size_t) override { return absl::UnimplementedError("all is pinned"); }
  void Unpin(const void*) override {}
  absl::Status CopyIn(void* d_to, const void* from_pinned, size_t bytes, cuda::Lane lane) override;
  absl::Status CopyOut(void* to_pinned, const void* d_from, size_t bytes, cuda::Lane lane) override;
  absl::Status CopyWithin(void* d_to, const void* d_from, size_t bytes, cuda::Lane lane) override;
  absl::Status Fill(void* d_memory, uint8_t byte, size_t bytes, cuda::Lane lane) override;
  absl::StatusOr<cuda::EventId> CreateEvent() override;
  absl::Status Record(cuda::EventId event, cuda::Lane lane) override;
  absl::Status Wait(cuda::Lane lane, cuda::EventId event) override;
  absl::Status Await(cuda::EventId event) override;
  absl::Status AwaitLane(cuda::Lane lane) override;
  absl::StatusOr<size_t> SortScratchBytes(const cuda::SortCall& call) override {
    return device_->SortScratchBytes(call);
  }
  absl::StatusOr<int> Sort(const cuda::SortCall& call) override;
  absl::StatusOr<size_t> SelectScratchBytes(const cuda::SelectCall& call) override {
    return device_->SelectScratchBytes(call);
  }
  absl::Status Select(const cuda::SelectCall& call) override;
  absl::Status LaunchOn(const cuda::KernelCall& call, cuda::Lane lane) override;

 private:
  struct Event {
    double time = 0;
    uint64_t buffer_bytes = 0;  // that the host's threads copy out of the buffer once the event has happened
    const void* buffer = nullptr;
  };

  double& TimeOf(cuda::Lane lane) { return timeline_.lanes[static_cast<size_t>(lane)]; }
  void Call(double seconds);
  double CopySeconds(uint64_t bytes) const;
  // Kernels that the lane has just run; their traffic is in the counter.
  void Run(cuda::Lane lane, int num_kernels);
  void RunFetch(const cuda::Fetch& fetch, cuda::Lane lane);
  bool IsOnDevice(const void* memory) const;
  void Reach(double time);

  const MachineModel machine_;
  Timeline& timeline_;
  const std::unique_ptr<cuda::Device> device_;
  std::map<const std::byte*, size_t> allocated_;  // on the device
  std::vector<Event> events_;
  uint64_t buffer_bytes_ = 0;  // copied out since the last Record
  const void* buffer_ = nullptr;
  std::unordered_map<const void*, double> free_at_;  // when the buffer's bytes have been copied out of it
};

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_GPU_TRAFFIC_TIMELINE_DEVICE_H_
