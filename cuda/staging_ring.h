// Copies between the host's ordinary memory and a device by way of pinned memory, which copies can overlap with work.
#ifndef SPARSEAGG_CUDA_STAGING_RING_H_
#define SPARSEAGG_CUDA_STAGING_RING_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "cuda/device.h"

namespace sparseagg::cuda {

// A ring of pinned slots, allocated once. A slot is written by the host while the copies from the others are under way,
// and used again when its own has happened. One thread at a time.
class StagingRing {
 public:
  StagingRing(Device& device, size_t slot_bytes, size_t num_slots)
      : device_(device), slot_bytes_(slot_bytes), num_slots_(num_slots) {}
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  ~StagingRing();

  // Host to device, on Lane::kCopy. `from` may be changed on return; pieces whose destinations adjoin are sent
  // together. Nothing is promised before Flush.
  absl::Status CopyIn(void* d_to, const void* from, size_t bytes);
  absl::Status Flush();

  // Device to host, behind the work on Lane::kCompute. Blocks until `to` is written.
  absl::Status CopyOut(void* to, const void* d_from, size_t bytes);

  // After an error, when nothing is under way on either lane: forgets what was not sent.
  void Reset();

 private:
  struct Slot {
    std::byte* memory = nullptr;
    EventId event = 0;
    bool in_flight = false;
  };

  absl::Status EnsureAllocated();
  // The next slot, when its last copy has happened.
  absl::Status NextSlot();

  Device& device_;
  const size_t slot_bytes_;
  const size_t num_slots_;
  std::vector<Slot> slots_;
  size_t current_ = 0;
  // What waits in the current slot.
  size_t filled_ = 0;
  std::byte* d_destination_ = nullptr;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_STAGING_RING_H_
