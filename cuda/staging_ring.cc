#include "cuda/staging_ring.h"

#include <algorithm>
#include <cstring>

#include "host/base/status_macros.h"

namespace sparseagg::cuda {

StagingRing::~StagingRing() {
  for (const Slot& slot : slots_) {
    if (slot.in_flight) device_.Await(slot.event).IgnoreError();
    device_.FreePinned(slot.memory);
  }
}

absl::Status StagingRing::EnsureAllocated() {
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

absl::Status StagingRing::NextSlot() {
  current_ = (current_ + 1) % slots_.size();
  Slot& slot = slots_[current_];
  if (slot.in_flight) RETURN_IF_ERROR(device_.Await(slot.event));
  slot.in_flight = false;
  return absl::OkStatus();
}

void StagingRing::Reset() {
  filled_ = 0;
  for (Slot& slot : slots_) slot.in_flight = false;
}

absl::Status StagingRing::CopyIn(void* d_to, const void* from, size_t bytes) {
  RETURN_IF_ERROR(EnsureAllocated());
  auto* d_next = static_cast<std::byte*>(d_to);
  const auto* next = static_cast<const std::byte*>(from);
  if (filled_ > 0 && d_next != d_destination_ + filled_) RETURN_IF_ERROR(Flush());
  while (bytes > 0) {
    if (filled_ == slot_bytes_) RETURN_IF_ERROR(Flush());
    if (filled_ == 0) {
      RETURN_IF_ERROR(NextSlot());
      d_destination_ = d_next;
    }
    const size_t piece = std::min(bytes, slot_bytes_ - filled_);
    std::memcpy(slots_[current_].memory + filled_, next, piece);
    filled_ += piece;
    d_next += piece;
    next += piece;
    bytes -= piece;
  }
  return absl::OkStatus();
}

absl::Status StagingRing::Flush() {
  if (filled_ == 0) return absl::OkStatus();
  Slot& slot = slots_[current_];
  RETURN_IF_ERROR(device_.CopyIn(d_destination_, slot.memory, filled_, Lane::kCopy));
  filled_ = 0;
  slot.in_flight = true;  // the host must not write to the slot, even if recording fails
  return device_.Record(slot.event, Lane::kCopy);
}

absl::Status StagingRing::CopyOut(void* to, const void* d_from, size_t bytes) {
  RETURN_IF_ERROR(EnsureAllocated());
  RETURN_IF_ERROR(Flush());
  const auto* d_next = static_cast<const std::byte*>(d_from);
  auto* next = static_cast<std::byte*>(to);
  // One piece is copied by the device while the host copies the one before out of its slot.
  struct Piece {
    size_t slot = 0;
    size_t bytes = 0;
  };
  Piece before;
  while (bytes > 0 || before.bytes > 0) {
    Piece piece;
    piece.bytes = std::min(bytes, slot_bytes_);
    if (piece.bytes > 0) {
      RETURN_IF_ERROR(NextSlot());
      piece.slot = current_;
      Slot& slot = slots_[current_];
      slot.in_flight = true;
      RETURN_IF_ERROR(device_.CopyOut(slot.memory, d_next, piece.bytes, Lane::kCompute));
      RETURN_IF_ERROR(device_.Record(slot.event, Lane::kCompute));
      d_next += piece.bytes;
      bytes -= piece.bytes;
    }
    if (before.bytes > 0) {
      Slot& slot = slots_[before.slot];
      RETURN_IF_ERROR(device_.Await(slot.event));
      slot.in_flight = false;
      std::memcpy(next, slot.memory, before.bytes);
      next += before.bytes;
    }
    before = piece;
  }
  return absl::OkStatus();
}

}  // namespace sparseagg::cuda
