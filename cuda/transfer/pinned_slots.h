// PinnedSlots: a ring of pinned host memory that copies of a device go through.
#ifndef SPARSEAGG_CUDA_TRANSFER_PINNED_SLOTS_H_
#define SPARSEAGG_CUDA_TRANSFER_PINNED_SLOTS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device/device.h"

namespace sparseagg::cuda {

// Slots of one size, allocated at first use and kept. Not thread-safe.
class PinnedSlots {
 public:
  struct Slot {
    std::byte* memory = nullptr;
    EventId event = 0;       // after the slot's last copy
    bool in_flight = false;  // that copy has perhaps not happened
  };

  PinnedSlots(Device& device, size_t slot_bytes, size_t num_slots)
      : device_(device), slot_bytes_(slot_bytes), num_slots_(num_slots) {}
  PinnedSlots(const PinnedSlots&) = delete;
  PinnedSlots& operator=(const PinnedSlots&) = delete;
  ~PinnedSlots();

  size_t slot_bytes() const { return slot_bytes_; }
  size_t num_slots() const { return num_slots_; }
  // Returns: the slot after the one that the call before returned. Its last copy may be under way (Await).
  absl::StatusOr<Slot*> Next();
  // Notes that copies of the slot have been asked for on `lane`.
  absl::Status Depart(Slot& slot, Lane lane);
  // Blocks: until the slot's last copy has happened.
  absl::Status Await(Slot& slot);
  // Requires: no copies under way.
  void Reset();

 private:
  absl::Status EnsureAllocated();

  Device& device_;
  const size_t slot_bytes_;
  const size_t num_slots_;
  std::vector<Slot> slots_;
  size_t current_ = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TRANSFER_PINNED_SLOTS_H_
