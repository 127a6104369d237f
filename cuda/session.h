// Session: what one operation on a device works with.
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

// A device with its memory budget and its staging ring. Owned by the DeviceEngine; used under the engine's device lock,
// so by one thread at a time. An operation's allocations are released when it ends, successful or not.
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

  // Allocates device memory for work on the compute lane. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes) { return memory_.Allocate(bytes, Lane::kCompute); }
  absl::StatusOr<DeviceRows> AllocateRows(const TensorShape& shape, uint32_t num_rows);

  // The indices of the flags that are set.
  struct Selection {
    DeviceBuffer d_indices;
    uint32_t count = 0;
  };
  // Blocks: until the number of indices is known.
  absl::StatusOr<Selection> Select(const DeviceBuffer& d_flags, uint32_t count);
  // The same in two steps, so that the host may do something else before it blocks. At most `max_selected` are set.
  struct PendingSelection {
    DeviceBuffer d_indices;
    DeviceBuffer d_count;
  };
  absl::StatusOr<PendingSelection> StartSelect(const DeviceBuffer& d_flags, uint32_t count, uint32_t max_selected);
  // The index of the first key of every run of equal keys.
  absl::StatusOr<PendingSelection> StartSelectHeads(const DeviceBuffer& d_sorted_keys, uint32_t key_bytes,
                                                    uint32_t count);
  absl::StatusOr<Selection> FinishSelect(PendingSelection pending);

  // Orders later work on the compute lane after all copies sent through the staging ring so far.
  absl::Status JoinCopies();

  // Blocks: until no work is under way on either lane, so that a failed operation leaves none behind.
  void Settle();

 private:
  // `call`: what to select by, and from how many.
  absl::StatusOr<PendingSelection> StartSelection(SelectCall call, uint32_t max_selected);

  Device& device_;
  DeviceMemory memory_;
  StagingRing staging_;
  const Tuning tuning_;
  bool has_event_ = false;
  EventId copied_ = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_SESSION_H_
