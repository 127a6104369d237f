// What one operation on a device works with.
#ifndef SPARSEAGG_CUDA_SESSION_H_
#define SPARSEAGG_CUDA_SESSION_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device.h"
#include "cuda/device_memory.h"
#include "cuda/rows.h"
#include "cuda/staging_ring.h"
#include "cuda/tuning.h"

namespace sparseagg::cuda {

// A device with its memory and its staging ring. One thread at a time; the engine's lock sees to that. Everything that
// an operation allocated is given back when it ends, in good or bad.
class Session {
 public:
  Session(Device& device, size_t budget_bytes, const Tuning& tuning)
      : device_(device),
        memory_(device, budget_bytes),
        staging_(device, tuning.staging_slot_bytes, tuning.num_staging_slots),
        tuning_(tuning) {}

  Device& device() { return device_; }
  DeviceMemory& memory() { return memory_; }
  StagingRing& staging() { return staging_; }
  const Tuning& tuning() const { return tuning_; }

  // For work on the compute lane.
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes) { return memory_.Allocate(bytes, Lane::kCompute); }
  absl::StatusOr<DeviceRows> AllocateRows(const TensorShape& shape, uint32_t num_rows);

  // Indices of the flags that are set. Blocks until their number is known.
  struct Selection {
    DeviceBuffer d_indices;
    uint32_t count = 0;
  };
  absl::StatusOr<Selection> Select(const DeviceBuffer& d_flags, uint32_t count);
  // The same in two steps, so that the host may do something else before it blocks. At most `max_selected` are set.
  struct PendingSelection {
    DeviceBuffer d_indices;
    DeviceBuffer d_count;
  };
  absl::StatusOr<PendingSelection> StartSelect(const DeviceBuffer& d_flags, uint32_t count, uint32_t max_selected);
  absl::StatusOr<Selection> FinishSelect(PendingSelection pending);

  // Later work on the compute lane happens after everything sent through the staging ring so far has arrived.
  absl::Status JoinCopies();

  // Waits for whatever is under way, so that a failed operation leaves nothing behind.
  void Settle();

 private:
  Device& device_;
  DeviceMemory memory_;
  StagingRing staging_;
  const Tuning tuning_;
  bool has_event_ = false;
  EventId copied_ = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_SESSION_H_
