// The interface of an engine, which merges updates on the CPU or on a GPU.
#ifndef SPARSEAGG_HOST_ENGINE_H_
#define SPARSEAGG_HOST_ENGINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/binned.h"
#include "host/result.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg {

struct UnfinishedRows;

// What some submissions count in an accumulator besides their rows.
struct PartialTotals {
  uint64_t num_submissions = 0;
  int64_t weight_sum = 0;        // of integer weights; 0 unless NeedsWeightSum
  WideBinnedSum binned_weights;  // with Numerics::kBinned and Weighting::kByWeight: the sum, in its place
  bool has_zero_weight = false;

  friend bool operator==(const PartialTotals& a, const PartialTotals& b) = default;
};

// An update in the form that its engine merges, for example sorted and folded. Made by Accumulator::Prepare, consumed
// by Accumulator::Add. Any accumulator of an equal spec on an engine of the same name() takes it; Add does not check.
class PreparedUpdate {
 public:
  virtual ~PreparedUpdate() = default;
  // Returns: bytes of keys and values in host memory, including memory that the update borrows from the caller, who
  // leaves it unchanged until the update is destroyed.
  virtual size_t memory_bytes() const = 0;
  // Whether this is a PartialUpdate (host/unfinished_rows.h), which all engines take.
  virtual bool is_partial() const { return false; }
};

// The canonical order of all submissions of an accumulator, as a permutation. order[i] is the index, in order of Add,
// of the submission that is i-th in ascending order of client id.
using SubmissionOrder = absl::Span<const uint32_t>;

// The state of one tensor in one aggregation, owned by the Aggregation. An update is what one client sends for this
// tensor; a submission is one client's updates of all tensors.
//
// Life cycle: Prepare and Add for each submission; in between FoldPending, and MergeFrom, Remove, ReadPending and
// MultiplyWeights where they are allowed; at last Finish, once. What a comment says of the state after an error holds
// after std::bad_alloc, too.
//
//   auto prepared = accumulator->Prepare(std::move(update));   // may refuse; changes nothing
//   RETURN_IF_ERROR(prepared.status());
//   RETURN_IF_ERROR(accumulator->Add(*std::move(prepared)));   // counts it
//   …                                                          // the same for other submissions
//   ASSIGN_OR_RETURN(Result result, std::move(*accumulator).Finish(order));
//
// Preparing and adding are separate so that a submission over several tensors counts completely or not at all: the
// submission is added only when all its updates are prepared.
//
// Prepare and PrepareBytes may run on any thread, also during other calls; they must have returned before Finish. All
// other calls, const ones too, are made one at a time. A call that finds no memory returns RESOURCE_EXHAUSTED or throws
// std::bad_alloc. A failure of a GPU is no error of a call: the engine does the work on the CPU (Engine::Probe).
// Deterministic: the bits of the result depend only on the spec, the updates and their canonical order, not on engine,
// threads and times of merges.
class Accumulator {
 public:
  virtual ~Accumulator() = default;

  // Brings an update into the engine's form. An update is refused for its content here or never.
  // Errors: OUT_OF_RANGE: a folded and weighted row of integers overflows int64. RESOURCE_EXHAUSTED: no memory, or
  // (CPU) 2^32 or more unsorted tuples.
  virtual absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const = 0;

  // Returns: the most memory that Prepare needs in addition to `update`, its return value included. Saturates.
  virtual uint64_t PrepareBytes(const ValidatedUpdate& update) const = 0;

  // Counts a submission's update. An aggregation adds every submission to the accumulators of all its tensors, with an
  // empty update where the submission has none. The update is pending until FoldPending or Finish merges (folds) it
  // into the base, the sums so far.
  // Errors: RESOURCE_EXHAUSTED: no memory. INTERNAL: a bug in the engine. Consumes `update`, after an error too. If
  // num_submissions() has grown after an error, the update counts. All other submissions still count, and calls may go
  // on. A PartialUpdate counts as one submission for each of its weights, and KeepsAll is false from then on. Requires
  // for it: !OrderMatters(spec).
  virtual absl::Status Add(std::unique_ptr<PreparedUpdate> update) = 0;

  // What FoldPending would merge.
  struct Pending {
    uint64_t bytes = 0;      // of the pending updates, in host or device memory
    uint64_t due_bytes = 0;  // from so many on a merge pays, as it reads and writes the base once
  };
  // Returns: what is pending where the order does not matter; elsewhere nothing, as no merge is due before Finish.
  virtual Pending pending() const { return {}; }

  // Moves all submissions of `other` here. In order of Add they follow the submissions that are here already. `other`
  // is spent, and can only be destroyed.
  // Requires: equal specs, and engines of the same name(). Where the order matters, neither has folded any submission.
  // Errors: as of Add. Discard both after an error.
  virtual absl::Status MergeFrom(Accumulator&& other) = 0;

  // Returns: true if the updates of all submissions are still pending. False for good once one has been merged.
  virtual bool KeepsAll() const = 0;
  // Takes submissions out, as if they had never been added, and releases their updates. The submissions after them move
  // down in order of Add.
  // `indices`: in order of Add, ascending, without repeats. Requires: KeepsAll(). Allocates nothing.
  virtual void Remove(absl::Span<const uint32_t> indices) = 0;

  // Multiplies the weight of every submission by a factor, each product rounded once. From now on the tensor is
  // weighted kByWeight: Finish gives the bits of an accumulator of such a spec whose clients have sent these weights.
  // `factors`: in order of Add; finite and ≥ 0, the products at most kMaxWeight. Requires: KeepsAll() and
  // TakesFactors(spec). Allocates nothing.
  virtual void MultiplyWeights(absl::Span<const double> factors) = 0;
  // Returns: the rows of all submissions, in order of Add. For kAscending sorts the updates first where they are not
  // sorted, which changes no result; kCoarse sorts nothing. An engine with a device does so on the CPU, and then does
  // all work for this tensor there.
  // Requires: KeepsAll(). Errors: RESOURCE_EXHAUSTED: no memory. UNAVAILABLE: updates are in the memory of a device
  // that has failed. Nothing is lost; the call may be repeated.
  virtual absl::StatusOr<std::vector<UpdateRows>> ReadPending(RowOrder order) = 0;
  // Returns: an upper bound of the memory that ReadPending needs in addition to memory_bytes(), and to that of `next`,
  // an update that is added before unless it is null; without what it returns. Saturates.
  virtual uint64_t ReadBytes(const PreparedUpdate* next) const = 0;

  // Folds all pending updates into the base, one row for each key, and releases them. The result has the bits of one
  // fold over all submissions, since the fold continues from the base.
  // `order`: of all submissions, not only the pending ones; may be empty where the order does not matter. Where it
  // matters, submissions added later must follow the folded ones in every later order: Aggregation refuses clients that
  // would not, and FoldPending and Finish refuse such an order (INTERNAL).
  // The CUDA engine folds sums whose order matters on the CPU, and then does all work for this tensor there.
  // Errors: RESOURCE_EXHAUSTED: no memory. INTERNAL: a bad order. All submissions still count, and the call may be
  // repeated. A sum over submissions that overflows is an error of Finish only: the base has more bits.
  virtual absl::Status FoldPending(SubmissionOrder order) = 0;

  // Returns: unfinished rows of all submissions whose keys are from `first` to `last`, up to `max_rows` of them. Folds
  // what is pending first. Requires: !OrderMatters(spec); max_rows > 0. Errors: as of FoldPending.
  virtual absl::StatusOr<UnfinishedRows> ExportRows(uint64_t first, uint64_t last, uint64_t max_rows) = 0;
  // Returns: what all submissions count; those of a partial each. Requires: !OrderMatters(spec). Allocates nothing.
  virtual PartialTotals Totals() const = 0;

  // Merges base and pending updates into the result. The accumulator is spent, after an error too.
  // `order`: of all submissions, also where the order does not matter; so it is empty only without submissions.
  // Errors: OUT_OF_RANGE: an integer sum overflows int64. FAILED_PRECONDITION: the weights of a mean add up to zero.
  // Both name tensor and key; min_contributors may hide the key. RESOURCE_EXHAUSTED: no memory. INTERNAL: a bad order.
  virtual absl::StatusOr<Result> Finish(SubmissionOrder order) && = 0;

  // The same, with the result in device memory. There is no CPU to go over to.
  // Errors: as of Finish. UNIMPLEMENTED: the engine has no device. UNAVAILABLE: the device has failed, now or before,
  // or FoldPending has gone over to the CPU. RESOURCE_EXHAUSTED: also no device memory.
  virtual absl::StatusOr<DeviceResult> FinishOnDevice(SubmissionOrder /*order*/) && {
    return absl::UnimplementedError("the CPU engine has no results in device memory");
  }

  virtual uint64_t num_submissions() const = 0;  // a partial is one
  // Returns: bytes of the pending updates and the base in host memory.
  virtual size_t memory_bytes() const = 0;
  // Return: the most host memory that FoldPending or Finish needs in addition to memory_bytes(), without the working
  // memory that does not grow with the input. If `next` is not null: the same once `next` is added; the caller adds the
  // bytes of `next` itself. Both saturate.
  virtual uint64_t FoldBytes(const PreparedUpdate* next) const = 0;
  virtual uint64_t FinishBytes(const PreparedUpdate* next) const = 0;
};

// Where an engine reads arrays in device memory: a CUDA device, by its number in this process, and a stream of it, as a
// cudaStream_t.
struct DeviceStream {
  int device = 0;
  uintptr_t stream = 0;
};

// One update whose arrays are in device memory, for Engine::Import.
struct DeviceUpdate {
  const TensorSpec* spec = nullptr;   // borrowed
  InputKeys keys;                     // spans of device memory, or a run; not used after the call
  const std::byte* values = nullptr;  // as of UpdateColumns, in device memory
  // Keeps the values; released on any thread, once the device has read them.
  std::shared_ptr<const void> owner = nullptr;
  double weight = 1.0;
  // Streams of the device on which the arrays may still be written, as of DeviceStream: the device reads them after
  // what is queued there. 1 and 2 are CUDA's legacy and per-thread default streams; 0: none.
  std::array<uintptr_t, 2> streams = {};
};

// One device of an engine.
struct DeviceState {
  int device = 0;  // by its number in this process
  std::string description;
  absl::Status status;          // the error after which the engine uses it no more, or OK
  uint64_t num_operations = 0;  // that ended well on it: merges, parts of merges, checks and imports of updates
  uint64_t sent_bytes = 0;      // keys and values that it was sent from host memory
};

// A way to merge updates on this machine. Owned by the program (the server's main); must outlive its accumulators. A
// new function here or in Accumulator needs one in cuda/plugin/plugin.cc, which calls it.
//
//   const std::unique_ptr<Engine> engine = CreateCpuEngine({.num_threads = 8});
//   RETURN_IF_ERROR(engine->Probe());
//   ASSIGN_OR_RETURN(std::unique_ptr<Accumulator> accumulator, engine->CreateAccumulator(spec));
//
// Thread-safe.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual absl::string_view name() const = 0;   // "cpu" or "cuda"
  virtual std::string description() const = 0;  // device and threads, for people to read
  // Returns: OK while the engine uses its device. An operation that finds no device memory runs on the CPU, and
  // so do all later ones of its tensor; other tensors use the device. After any other error of the device, in any call,
  // the engine does that work again and all further work on the CPU, and Probe returns that error. CreateAccumulator
  // works without a Probe before it.
  virtual absl::Status Probe() const = 0;
  // Returns: the devices that the engine uses, or used before they failed; of the CPU engine none.
  virtual std::vector<DeviceState> devices() const { return {}; }
  // Returns: from how many bytes of pending updates on a merge pays, whatever the base.
  virtual uint64_t min_pending_bytes() const = 0;
  // Gives memory that is kept for later merges and results, on the device and pinned, back to the system. Blocks: while
  // others use the device. An error of the device is one as in any other call.
  virtual void ReleaseDeviceMemory() {}
  // Makes an empty accumulator, with a copy of `spec`.
  // Requires: `spec` has passed Validate.
  // Errors: the CPU and CUDA engines have none.
  virtual absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) = 0;

  // Returns: where Import reads arrays. nullopt: the engine reads only host memory.
  virtual std::optional<DeviceStream> device_stream() const { return std::nullopt; }
  // Validates updates whose arrays are in device memory, for the accumulators of this engine: they have on_device().
  // Copies the keys on the device, in the tensors' key types and into memory that the updates share, and borrows the
  // values where they lie. So nothing is copied to the host, unless an update is refused or the device gives up.
  // Appends the updates to `imported` in order, up to the first one that is refused: its error is returned, and it is
  // that of updates[n], where n updates were appended.
  // Requires: whoever writes the arrays has done so in the order of device_stream() or of the update's `streams`, and
  // does not change the values before the update is merged or destroyed.
  // Errors: INVALID_ARGUMENT: as of ValidatedUpdate::CreateWithCopiedKeys, or an array is not in the memory of the
  // device, or the device cannot wait for a stream. RESOURCE_EXHAUSTED: no memory on the device nor on the host.
  // UNIMPLEMENTED: the engine reads only host memory. UNAVAILABLE: the device has failed.
  // Blocks: until the device has checked the updates, once for all of them.
  virtual absl::Status Import(absl::Span<DeviceUpdate> /*updates*/, std::vector<ValidatedUpdate>& /*imported*/) {
    return absl::UnimplementedError("the CPU engine reads only arrays in host memory");
  }
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_ENGINE_H_
