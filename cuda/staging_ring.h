// StagingRing: copies between pageable host memory and a device through pinned slots, overlapped with device work.
#ifndef SPARSEAGG_CUDA_STAGING_RING_H_
#define SPARSEAGG_CUDA_STAGING_RING_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "cuda/device.h"

namespace sparseagg::cuda {

// A ring of pinned slots, allocated at the first copy. The host fills one slot while the copies of the others are under
// way; a slot is reused when its own copy has happened. Not thread-safe.
class StagingRing {
 public:
  StagingRing(Device& device, size_t slot_bytes, size_t num_slots)
      : device_(device), slot_bytes_(slot_bytes), num_slots_(num_slots) {}
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  ~StagingRing();

  // Copies host to device, on Lane::kCopy. `from` may be changed on return. Consecutive copies to adjoining
  // destinations are sent together; all are on their way only after Flush.
  absl::Status CopyIn(void* d_to, const void* from, size_t bytes);
  absl::Status Flush();

  // Copies device to host, after the work on Lane::kCompute. Blocks: until `to` is written.
  absl::Status CopyOut(void* to, const void* d_from, size_t bytes);

  // Discards what was not sent. Requires: no work under way on either lane (after an error).
  void Reset();

 private:
  struct Slot {
    std::byte* memory = nullptr;
    EventId event = 0;
    bool in_flight = false;
  };

  absl::Status EnsureAllocated();
  // Moves to the next slot. Blocks: until that slot's last copy has happened.
  absl::Status NextSlot();

  Device& device_;
  const size_t slot_bytes_;
  const size_t num_slots_;
  std::vector<Slot> slots_;
  size_t current_ = 0;
  // The current slot's bytes that are not sent yet, and where they go.
  size_t filled_ = 0;
  std::byte* d_destination_ = nullptr;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_STAGING_RING_H_
