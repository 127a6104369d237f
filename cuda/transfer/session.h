// Session: a device with its memory budget and its rings.
#ifndef SPARSEAGG_CUDA_TRANSFER_SESSION_H_
#define SPARSEAGG_CUDA_TRANSFER_SESSION_H_

#include <array>
#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cuda/device/device.h"
#include "cuda/transfer/rings.h"
#include "cuda/tuning.h"
#include "host/base/host_threads.h"

namespace sparseagg::cuda {

// One for each device, used by one operation after another under DeviceEngine's device lock; or one for a single
// operation on a HostDevice. Not thread-safe. An operation releases what it has allocated when it ends, successful or
// not, but for what a caller keeps. Copies made by SendAhead outlive it, until Forget or until device memory runs out.
class Session {
 public:
  // `num_threads`: that copy within host memory; 0: one per core.
  Session(Device& device, size_t budget_bytes, const Tuning& tuning, int num_threads = 0)
      : device_(device),
        tuning_(tuning),
        threads_(num_threads),
        memory_(device, budget_bytes),
        resident_(static_cast<size_t>(static_cast<double>(budget_bytes) * tuning.max_resident_share)),
        staging_(device, memory_, threads_, resident_, tuning),
        pinned_(device, tuning.max_pinned_bytes, tuning.min_pinned_bytes) {}

  Device& device() { return device_; }
  DeviceMemory& memory() { return memory_; }
  HostThreads& threads() { return threads_; }
  ResidentArrays& resident() { return resident_; }
  const ResidentArrays& resident() const { return resident_; }
  // Begins an operation, or another attempt of one.
  void Begin() { room_bytes_ = memory_.budget_bytes() - memory_.used_bytes(); }
  // Device memory for the operation: what copies of arrays, and what callers keep, left when it began.
  size_t room_bytes() const { return room_bytes_; }
  StagingRing& staging() { return staging_; }
  PinnedArena& pinned() { return pinned_; }
  const Tuning& tuning() const { return tuning_; }

  // Allocates device memory for work on the compute lane. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes) { return memory_.Allocate(bytes, Lane::kCompute); }

  struct Selection {
    DeviceBuffer d_indices;
    DeviceBuffer d_count;  // until FinishSelect
    uint32_t count = 0;
  };
  // Selects indices on the compute lane, in two steps, so that the host may do something else before it blocks.
  // `call`: what to select by, and from how many.
  absl::StatusOr<Selection> StartSelect(SelectCall call);
  // Blocks: until the number of indices is known.
  absl::Status FinishSelect(Selection& selection);
  // Both steps, for the indices of the flags that are set.
  absl::StatusOr<Selection> Select(const DeviceBuffer& d_flags, uint32_t count);

  // Starts copies of whole arrays to the device, which StagingRing::CopyIn uses from then on, and does not wait for the
  // last of them. The arrays must outlive Forget, unmodified. Sends nothing, and returns OK, if there is no room for
  // all of them (Tuning::max_resident_share). Adds to `sent` those that had no copy before: the caller must Forget
  // them, after an error or std::bad_alloc too.
  absl::Status SendAhead(absl::Span<const HostPart> arrays, std::vector<const void*>& sent);
  // Drops the copies of arrays. Blocks: until the arrays are not read any more.
  absl::Status Forget(absl::Span<const void* const> arrays);

  // Copies device to host, after the work on the compute lane. Blocks: until `to` is written.
  absl::Status CopyOut(void* to, const void* d_from, size_t bytes);

  // Orders later work on `to` after all work on `from` so far; Flush sends what the staging ring still has.
  absl::Status Join(Lane to, Lane from);
  // Returns: an event after all work on the lane so far. It is used again by the kMarks-th call for the lane after this
  // one; whoever waits for it then waits longer.
  static constexpr size_t kMarks = 8;
  absl::StatusOr<EventId> Mark(Lane lane);

  // Blocks: until no work is under way on any lane, so that a failed operation leaves none behind.
  void Settle();

 private:
  Device& device_;
  const Tuning tuning_;
  HostThreads threads_;
  DeviceMemory memory_;
  ResidentArrays resident_;
  size_t room_bytes_ = memory_.budget_bytes();
  bool is_sending_ahead_ = false;  // copies sent ahead may be under way
  StagingRing staging_;
  PinnedArena pinned_;
  struct Marks {
    std::vector<EventId> events;
    size_t next = 0;
  };
  std::array<Marks, kLanes.size()> marks_;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TRANSFER_SESSION_H_
