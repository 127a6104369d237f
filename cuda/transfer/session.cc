#include "cuda/transfer/session.h"

#include <utility>
#include <vector>

#include "host/base/status_macros.h"

namespace sparseagg::cuda {

absl::StatusOr<Session::Selection> Session::StartSelect(SelectCall call) {
  Selection selection;
  ASSIGN_OR_RETURN(selection.d_indices, Allocate(size_t{call.count} * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(selection.d_count, Allocate(sizeof(uint32_t)));
  call.d_indices = selection.d_indices.as<uint32_t>();
  call.d_num_selected = selection.d_count.as<uint32_t>();
  RETURN_IF_ERROR(device_.Select(call));
  ASSIGN_OR_RETURN(const DeviceBuffer scratch, Allocate(call.scratch_bytes));
  call.d_scratch = scratch.get();
  RETURN_IF_ERROR(device_.Select(call));
  return selection;
}

absl::Status Session::FinishSelect(Selection& selection) {
  const DeviceBuffer d_count = std::move(selection.d_count);
  return CopyOut(&selection.count, d_count.get(), sizeof(selection.count));
}

absl::StatusOr<Session::Selection> Session::Select(const DeviceBuffer& d_flags, uint32_t count) {
  SelectCall call;
  call.d_flags = d_flags.as<uint8_t>();
  call.count = count;
  ASSIGN_OR_RETURN(Selection selection, StartSelect(call));
  RETURN_IF_ERROR(FinishSelect(selection));
  return selection;
}

absl::Status Session::SendAhead(absl::Span<const HostPart> arrays, std::vector<const void*>& sent) {
  std::vector<std::pair<HostPart, DeviceBuffer>> copies;
  size_t bytes = 0;
  for (const HostPart& array : arrays) {
    if (array.bytes == 0 || resident_.Find(array.array, array.bytes) != nullptr) continue;
    resident_.Drop(array.array);  // a copy of a shorter array that begins there
    bytes += array.bytes;
    copies.emplace_back(array, DeviceBuffer());
  }
  if (!resident_.HasRoomFor(bytes)) return absl::OkStatus();
  for (auto& [array, copy] : copies) {
    ASSIGN_OR_RETURN(copy, memory_.Allocate(array.bytes, Lane::kCopy));
  }
  is_sending_ahead_ = true;
  for (const auto& [array, copy] : copies) RETURN_IF_ERROR(staging_.CopyIn(copy.get(), 0, array));
  RETURN_IF_ERROR(staging_.Flush());
  for (auto& [array, copy] : copies) {
    sent.push_back(array.array);
    resident_.Add(array.array, std::move(copy));
  }
  return absl::OkStatus();
}

absl::Status Session::Forget(absl::Span<const void* const> arrays) {
  for (const void* array : arrays) resident_.Drop(array);
  return std::exchange(is_sending_ahead_, false) ? device_.AwaitLane(Lane::kCopy) : absl::OkStatus();
}

absl::Status Session::CopyOut(void* to, const void* d_from, size_t bytes) {
  if (bytes <= StagingRing::kSmallBytes) return staging_.CopyOutSmall(to, d_from, bytes);
  RETURN_IF_ERROR(Join(Lane::kResult, Lane::kCompute));
  const CopyPiece piece = {to, d_from, bytes};
  absl::Status status = staging_.CopyOut({&piece, 1});
  // The caller may free the source in the order of the compute lane.
  if (!status.ok()) device_.AwaitLane(Lane::kResult).IgnoreError();
  return status;
}

absl::Status Session::Join(Lane to, Lane from) {
  ASSIGN_OR_RETURN(const EventId sent, Mark(from));
  return device_.Wait(to, sent);
}

absl::StatusOr<EventId> Session::Mark(Lane lane) {
  auto& [events, next] = marks_[static_cast<size_t>(lane)];
  if (events.size() < kMarks) {
    ASSIGN_OR_RETURN(const EventId event, device_.CreateEvent());
    events.push_back(event);
  }
  const EventId mark = events[next++ % kMarks];
  RETURN_IF_ERROR(device_.Record(mark, lane));
  return mark;
}

void Session::Settle() {
  for (const Lane lane : kLanes) device_.AwaitLane(lane).IgnoreError();
  is_sending_ahead_ = false;
  staging_.Reset();
}

}  // namespace sparseagg::cuda
