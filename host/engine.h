// The interface between meaning and speed: what an engine does, on the CPU or on a GPU.
#ifndef SPARSEAGG_HOST_ENGINE_H_
#define SPARSEAGG_HOST_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/result.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg {

// An update in the form that its engine merges, for example sorted and folded. Accumulator::Prepare makes it;
// Accumulator::Add of the same engine and spec consumes it.
class PreparedUpdate {
 public:
  virtual ~PreparedUpdate() = default;
  virtual size_t memory_bytes() const = 0;
};

// The canonical order of an accumulator's submissions. order[i] is the index, in order of Add, of the submission that
// is i-th in ascending order of client id.
using SubmissionOrder = absl::Span<const uint32_t>;

// The state of one tensor in one aggregation, owned by the Aggregation.
//
// Life cycle: Prepare and Add for each submission; FoldPending at any time in between; Finish once, as the last call.
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
// Prepare and PrepareBytes are thread-safe among themselves; every other call needs the accumulator for itself.
// Deterministic: the bits of the result depend only on the prepared updates and their canonical order.
class Accumulator {
 public:
  virtual ~Accumulator() = default;

  // Brings an update into the engine's form. Everything that can refuse an update is here.
  // Errors: INVALID_ARGUMENT: a term beyond value_bound under kReject. OUT_OF_RANGE: a row of integers that overflows
  // int64 by itself (duplicates folded, weighted). RESOURCE_EXHAUSTED: no memory.
  // Thread-safe.
  virtual absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const = 0;

  // Returns: the most memory that Prepare needs in addition to `update`, its return value included. Saturates.
  virtual uint64_t PrepareBytes(const ValidatedUpdate& update) const = 0;

  // Counts a submission's update. An aggregation adds every submission to the accumulators of all its tensors, with an
  // empty update where the submission has none. The update waits as pending until the engine merges it.
  // Errors: of merges. num_submissions() says whether the submission counts all the same.
  virtual absl::Status Add(std::unique_ptr<PreparedUpdate> update) = 0;

  // Moves all submissions of `other` here. In order of Add they follow the submissions that are here already.
  // Requires: `other` is of the same engine and spec.
  virtual absl::Status MergeFrom(Accumulator&& other) = 0;

  // Folds all pending updates into the base, one row for each key, and releases them. The result has the bits of one
  // fold over all submissions, since the fold continues from the base.
  // `order`: as for Finish; may be empty where the order does not matter (OrderMatters). Where the order matters,
  // submissions added later must follow the folded ones in every later order.
  // A device engine folds sums whose order matters on the CPU: there the tensor stays until Finish.
  // Errors: RESOURCE_EXHAUSTED: no memory. Errors change nothing of what counts.
  virtual absl::Status FoldPending(SubmissionOrder order) = 0;

  // Merges everything into the result. The accumulator is spent.
  // Requires: `order` is a permutation of the submissions added.
  // Errors: OUT_OF_RANGE: an integer sum overflows int64. FAILED_PRECONDITION: the weights of a mean add up to zero.
  // The message names tensor and key.
  virtual absl::StatusOr<Result> Finish(SubmissionOrder order) && = 0;

  virtual uint64_t num_submissions() const = 0;
  // Returns: bytes of the pending updates and the base.
  virtual size_t memory_bytes() const = 0;
  // Return: the most memory that FoldPending and Finish need in addition to memory_bytes(), without the working memory
  // that does not grow with the input. If `next` is not null: the same once `next` is added. Saturate.
  virtual uint64_t FoldBytes(const PreparedUpdate* next) const = 0;
  virtual uint64_t FinishBytes(const PreparedUpdate* next) const = 0;
};

// A way to merge updates on this machine. The composition root creates one of each kind and owns it; the engine
// outlives its accumulators.
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
  // Returns: OK if the engine works on this machine, now; otherwise why it does not.
  virtual absl::Status Probe() const = 0;
  // Requires: `spec` has passed Validate.
  virtual absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) = 0;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_ENGINE_H_
