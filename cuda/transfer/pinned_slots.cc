#include "cuda/transfer/pinned_slots.h"

#include "host/base/status_macros.h"

namespace sparseagg::cuda {

PinnedSlots::~PinnedSlots() {
  for (Slot& slot : slots_) {
    Await(slot).IgnoreError();
    device_.FreePinned(slot.memory);
  }
}

absl::Status PinnedSlots::EnsureAllocated() {
  slots_.reserve(num_slots_);  // so that slots keep their place
  while (slots_.size() < num_slots_) {
    Slot slot;
    // Memory first, because it is more likely to fail and can be freed; an event stays with the device.
    ASSIGN_OR_RETURN(void* memory, device_.AllocatePinned(slot_bytes_));
    slot.memory = static_cast<std::byte*>(memory);
    absl::StatusOr<EventId> event = device_.CreateEvent();
    if (!event.ok()) {
      device_.FreePinned(memory);
      return event.status();
    }
    slot.event = *event;
    slots_.push_back(slot);
  }
  return absl::OkStatus();
}

absl::StatusOr<PinnedSlots::Slot*> PinnedSlots::Next() {
  RETURN_IF_ERROR(EnsureAllocated());
  current_ = (current_ + 1) % slots_.size();
  return &slots_[current_];
}

absl::Status PinnedSlots::Depart(Slot& slot, Lane lane) {
  slot.in_flight = true;  // the host must not use the slot, even if recording fails
  return device_.Record(slot.event, lane);
}

absl::Status PinnedSlots::Await(Slot& slot) {
  if (slot.in_flight) RETURN_IF_ERROR(device_.Await(slot.event));
  slot.in_flight = false;
  return absl::OkStatus();
}

void PinnedSlots::Reset() {
  for (Slot& slot : slots_) slot.in_flight = false;
}

}  // namespace sparseagg::cuda
