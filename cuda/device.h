// The narrow interface between the engine's orchestration and a device: memory, copies, order, and the algorithms.
#ifndef SPARSEAGG_CUDA_DEVICE_H_
#define SPARSEAGG_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/kernels/calls.h"
#include "cuda/kernels/check.h"
#include "cuda/kernels/contributors.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/fold_values.h"
#include "cuda/kernels/segments.h"
#include "cuda/kernels/tiles.h"

namespace sparseagg::cuda {

// Work on a lane happens in the order in which it is asked for, work on different lanes in any order except where an
// event says otherwise.
enum class Lane : uint8_t { kCopy, kCompute };

using EventId = uint32_t;

// FoldValues and Contributors run both of their kernels: short and long segments.
using KernelCall = std::variant<ExpandRun, Enumerate, FlagHeads, FlagLong, GatherKeys, FoldValues, Contributors,
                                FindTileBounds, FoldTiles, GatherTouched, CheckTerms, JudgeRows, JudgeValues,
                                DropZeroRows, WriteValues, WriteRows, FillValues>;

// Calls are asynchronous unless they say otherwise; a status may belong to work asked for earlier. RESOURCE_EXHAUSTED
// means that there is no memory, which leaves the device as it was. Any other error means that the device cannot be
// trusted any more: every later call fails as well.
//
// Not thread-safe: one thread at a time.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string description() const = 0;
  // Around every operation of a thread.
  virtual absl::Status Enter() { return absl::OkStatus(); }
  virtual void Leave() {}

  // Bytes of device memory that may be used, as a rule.
  virtual size_t memory_bytes() const = 0;

  // Memory is there for work on `lane`, and is given back behind the work on `lane`. Aligned to 256 bytes.
  virtual absl::StatusOr<void*> Allocate(size_t bytes, Lane lane) = 0;
  virtual void Free(void* d_memory, Lane lane) = 0;
  // Host memory that copies need. Synchronous, and slow.
  virtual absl::StatusOr<void*> AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;

  virtual absl::Status CopyIn(void* d_to, const void* from_pinned, size_t bytes, Lane lane) = 0;
  virtual absl::Status CopyOut(void* to_pinned, const void* d_from, size_t bytes, Lane lane) = 0;
  virtual absl::Status CopyWithin(void* d_to, const void* d_from, size_t bytes, Lane lane) = 0;
  virtual absl::Status Fill(void* d_memory, uint8_t byte, size_t bytes, Lane lane) = 0;

  virtual absl::StatusOr<EventId> CreateEvent() = 0;  // lives as long as the device
  // The event is what `lane` has been asked for so far.
  virtual absl::Status Record(EventId event, Lane lane) = 0;
  // Later work on `lane` happens after the event.
  virtual absl::Status Wait(Lane lane, EventId event) = 0;
  // Blocks until the event, or all work on the lane, has happened.
  virtual absl::Status Await(EventId event) = 0;
  virtual absl::Status AwaitLane(Lane lane) = 0;

  // Algorithms, on Lane::kCompute.
  virtual absl::StatusOr<size_t> SortScratchBytes(const SortCall& call) = 0;
  // Which of the pairs of buffers (0 or 1) will hold the output.
  virtual absl::StatusOr<int> Sort(const SortCall& call) = 0;
  virtual absl::StatusOr<size_t> SelectScratchBytes(const SelectCall& call) = 0;
  virtual absl::Status Select(const SelectCall& call) = 0;
  virtual absl::Status Launch(const KernelCall& call) = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_H_
