#include "bench/gpu/traffic/timeline_device.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "bench/gpu/traffic/access_counter.h"
#include "bench/gpu/traffic/counting_device.h"
#include "cuda/transfer/result_ring.h"

namespace sparseagg::bench {

using cuda::Lane;

TimelineDevice::TimelineDevice(Timeline* timeline) : timeline_(*timeline), device_(MakeCountingDevice()) {
  StartCounting();
}

void TimelineDevice::Restart() {
  timeline_ = {};
  for (Event& event : events_) event = {};
  free_at_.clear();
}

void TimelineDevice::Call(double seconds) { timeline_.host += seconds; }

double TimelineDevice::CopySeconds(uint64_t bytes) const {
  return static_cast<double>(bytes) /
         std::min(machine_.most_copy_bytes_per_s, machine_.thread_copy_bytes_per_s * machine_.num_copy_threads);
}

void TimelineDevice::Run(Lane lane, int num_kernels) {
  const Traffic traffic = TakeTraffic();
  const uint64_t bytes = traffic.read_bytes + traffic.written_bytes;
  Call(num_kernels * machine_.work_call_s);
  double& time = TimeOf(lane);
  time = std::max(time, timeline_.host) + num_kernels * machine_.launch_s +
         static_cast<double>(bytes) / machine_.memory_bytes_per_s;
}

void TimelineDevice::Reach(double time) {
  Call(machine_.call_s);
  if (time > timeline_.host) timeline_.host = time + machine_.wait_s;
}

absl::StatusOr<void*> TimelineDevice::Allocate(size_t bytes, Lane lane) {
  Call(machine_.call_s);
  absl::StatusOr<void*> d_memory = device_->Allocate(bytes, lane);
  if (d_memory.ok()) allocated_[static_cast<const std::byte*>(*d_memory)] = bytes;
  return d_memory;
}
void TimelineDevice::Free(void* d_memory, Lane lane) {
  Call(machine_.call_s);
  allocated_.erase(static_cast<const std::byte*>(d_memory));
  device_->Free(d_memory, lane);
}

absl::Status TimelineDevice::CopyIn(void* d_to, const void* from_pinned, size_t bytes, Lane lane) {
  Call(machine_.work_call_s);
  if (device_->IsPinned(from_pinned, bytes)) {  // a buffer
    timeline_.host = timeline_.copies = std::max(timeline_.host, timeline_.copies) + CopySeconds(bytes);
  }
  timeline_.in_bytes += bytes;
  double& time = TimeOf(lane);
  time = timeline_.link_in = std::max({time, timeline_.host, timeline_.link_in}) + machine_.copy_s +
                             static_cast<double>(bytes) / machine_.link_bytes_per_s;
  return device_->CopyIn(d_to, from_pinned, bytes, lane);
}

absl::Status TimelineDevice::CopyOut(void* to_pinned, const void* d_from, size_t bytes, Lane lane) {
  Call(machine_.work_call_s);
  timeline_.host = std::max(timeline_.host, free_at_[to_pinned]);
  timeline_.out_bytes += bytes;
  buffer_bytes_ = bytes;
  buffer_ = to_pinned;
  double& time = TimeOf(lane);
  time = timeline_.link_out = std::max({time, timeline_.host, timeline_.link_out}) + machine_.copy_s +
                              static_cast<double>(bytes) / machine_.link_bytes_per_s;
  return device_->CopyOut(to_pinned, d_from, bytes, lane);
}

absl::Status TimelineDevice::CopyWithin(void* d_to, const void* d_from, size_t bytes, Lane lane) {
  absl::Status status = device_->CopyWithin(d_to, d_from, bytes, lane);
  Run(lane, 1);
  return status;
}
absl::Status TimelineDevice::Fill(void* d_memory, uint8_t byte, size_t bytes, Lane lane) {
  absl::Status status = device_->Fill(d_memory, byte, bytes, lane);
  Run(lane, 1);
  return status;
}

absl::StatusOr<cuda::EventId> TimelineDevice::CreateEvent() {
  events_.emplace_back();
  return device_->CreateEvent();
}
absl::Status TimelineDevice::Record(cuda::EventId event, Lane lane) {
  Call(machine_.call_s);
  events_[event] = {TimeOf(lane), std::exchange(buffer_bytes_, 0), buffer_};
  return device_->Record(event, lane);
}
absl::Status TimelineDevice::Wait(Lane lane, cuda::EventId event) {
  Call(machine_.call_s);
  TimeOf(lane) = std::max(TimeOf(lane), events_[event].time);
  return device_->Wait(lane, event);
}
absl::Status TimelineDevice::Await(cuda::EventId event) {
  Event& awaited = events_[event];
  Reach(awaited.time);
  if (awaited.buffer_bytes > 0) {
    timeline_.copies = std::max(timeline_.host, timeline_.copies) + CopySeconds(std::exchange(awaited.buffer_bytes, 0));
    free_at_[awaited.buffer] = timeline_.copies;
  }
  return device_->Await(event);
}
absl::Status TimelineDevice::AwaitLane(Lane lane) {
  Reach(TimeOf(lane));
  return device_->AwaitLane(lane);
}

absl::StatusOr<int> TimelineDevice::Sort(const cuda::SortCall& call) {
  absl::StatusOr<int> output = device_->Sort(call);
  Run(Lane::kCompute, (call.end_bit + 7) / 8 + 2);  // a histogram and its scan, and the passes
  return output;
}
absl::Status TimelineDevice::Select(const cuda::SelectCall& call) {
  absl::Status status = device_->Select(call);
  Run(Lane::kCompute, 2);
  return status;
}
absl::Status TimelineDevice::LaunchOn(const cuda::KernelCall& call, Lane lane) {
  absl::Status status = device_->LaunchOn(call, lane);
  if (const auto* fetch = std::get_if<cuda::Fetch>(&call)) return RunFetch(*fetch, lane), status;
  // For short, medium and long segments.
  const bool is_three =
      std::holds_alternative<cuda::FoldValues>(call) || std::holds_alternative<cuda::Contributors>(call);
  Run(lane, is_three ? 3 : 1);
  return status;
}

bool TimelineDevice::IsOnDevice(const void* memory) const {
  const auto after = allocated_.upper_bound(static_cast<const std::byte*>(memory));
  if (after == allocated_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return static_cast<const std::byte*>(memory) < begin + bytes;
}

void TimelineDevice::RunFetch(const cuda::Fetch& fetch, Lane lane) {
  uint64_t bytes = 0;
  uint64_t lines = 0;
  for (uint32_t i = 0; i < fetch.num_chunks; ++i) {
    const cuda::FetchChunk& chunk = fetch.d_chunks[i];
    if (IsOnDevice(chunk.from)) continue;
    constexpr uint32_t kLineWords = 32;
    bytes += (chunk.end - chunk.begin) * sizeof(uint32_t);
    lines += (chunk.end - 1) / kLineWords - chunk.begin / kLineWords + 1;
  }
  timeline_.in_bytes += bytes;
  const double start = std::max({TimeOf(lane), timeline_.host, timeline_.link_in});
  Run(lane, 1);
  double& time = TimeOf(lane);
  if (lines == 0) return;
  time = timeline_.link_in =
      std::max(time, start + machine_.launch_s + static_cast<double>(lines) * 128 / machine_.fetch_bytes_per_s);
}

}  // namespace sparseagg::bench
