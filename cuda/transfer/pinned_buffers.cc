#include "cuda/transfer/pinned_buffers.h"

#include "host/base/status_macros.h"

namespace sparseagg::cuda {

PinnedBuffers::~PinnedBuffers() {
  for (Buffer& buffer : buffers_) {
    Await(buffer).IgnoreError();
    device_.FreePinned(buffer.memory);
  }
}

absl::Status PinnedBuffers::EnsureAllocated() {
  buffers_.reserve(num_buffers_);  // so that buffers keep their place
  while (buffers_.size() < num_buffers_) {
    Buffer buffer;
    // Memory first, because it is more likely to fail and can be freed; an event stays with the device.
    ASSIGN_OR_RETURN(void* memory, device_.AllocatePinned(buffer_bytes_));
    buffer.memory = static_cast<std::byte*>(memory);
    absl::StatusOr<EventId> event = device_.CreateEvent();
    if (!event.ok()) {
      device_.FreePinned(memory);
      return event.status();
    }
    buffer.event = *event;
    buffers_.push_back(buffer);
  }
  return absl::OkStatus();
}

absl::StatusOr<PinnedBuffers::Buffer*> PinnedBuffers::Next() {
  RETURN_IF_ERROR(EnsureAllocated());
  current_ = (current_ + 1) % buffers_.size();
  return &buffers_[current_];
}

absl::Status PinnedBuffers::Depart(Buffer& buffer, Lane lane) {
  buffer.in_flight = true;  // the host must not use the buffer, even if recording fails
  return device_.Record(buffer.event, lane);
}

absl::Status PinnedBuffers::Await(Buffer& buffer) {
  if (buffer.in_flight) RETURN_IF_ERROR(device_.Await(buffer.event));
  buffer.in_flight = false;
  return absl::OkStatus();
}

void PinnedBuffers::Reset() {
  for (Buffer& buffer : buffers_) buffer.in_flight = false;
}

}  // namespace sparseagg::cuda
