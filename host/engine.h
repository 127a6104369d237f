// The seam between meaning and speed: what an engine does.
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

// An update in the form its engine merges (sorted and folded, or on a device). Made by Accumulator::Prepare, spent by
// Accumulator::Add of the same engine and spec.
class PreparedUpdate {
 public:
  virtual ~PreparedUpdate() = default;
  virtual size_t memory_bytes() const = 0;
};

// order[i] is the index, in order of Add, of the submission that is i-th in ascending order of client id.
using SubmissionOrder = absl::Span<const uint32_t>;

// The state of one tensor in one aggregation.
//
//   Prepare(update)  everything that can refuse: any number of threads at once, nothing is changed.
//   Add(prepared)    counts it: one thread at a time.
//   Finish(order)    the result; the accumulator is spent.
//
// Preparing and adding are apart so that a submission over several tensors is all or nothing: it is added only when
// every part of it has been prepared. (One Add that validates could refuse the second tensor after the first is in.)
//
// Determinism: the bits of the result depend on the prepared updates and their canonical order only.
class Accumulator {
 public:
  virtual ~Accumulator() = default;

  // INVALID_ARGUMENT: a term beyond value_bound under kReject. OUT_OF_RANGE: an integer row that overflows int64 by
  // itself (duplicates folded, weighted). RESOURCE_EXHAUSTED: no memory.
  virtual absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const = 0;

  // The most memory that Prepare takes beside `update`, what it returns included. Saturates.
  virtual uint64_t PrepareBytes(const ValidatedUpdate& update) const = 0;

  // Every submission of the aggregation is added to every tensor, with an empty update where it has none.
  virtual absl::Status Add(std::unique_ptr<PreparedUpdate> update) = 0;

  // Takes over all of `other`, of the same engine and spec; its submissions follow ours in order of Add.
  virtual absl::Status MergeFrom(Accumulator&& other) = 0;

  // Folds all submissions added so far and lets go of them: what stays is a row a key. `order` is theirs, as for
  // Finish, and may be empty where it does not matter (OrderMatters). Where it does, those added later must follow them
  // in every later order; the fold goes on from the rows, so that the result has the bits of one fold over all. An
  // error (RESOURCE_EXHAUSTED: no memory; UNIMPLEMENTED: not on this engine; FAILED_PRECONDITION: keys of an
  // update have been changed since it was added) leaves everything as it was.
  virtual absl::Status FoldPending(SubmissionOrder order) = 0;

  // OUT_OF_RANGE: an integer sum leaves int64. FAILED_PRECONDITION: weights that add to zero where they are divided
  // by. Both name tensor and key. FAILED_PRECONDITION, too: keys have been changed. `order` must be a permutation of
  // the submissions added.
  virtual absl::StatusOr<Result> Finish(SubmissionOrder order) && = 0;

  virtual uint64_t num_submissions() const = 0;
  // Updates and partial sums held.
  virtual size_t memory_bytes() const = 0;
  // The most memory that FoldPending and Finish can take beside that, apart from working memory that does not grow with
  // the input; with `next` not null, once that is added. They saturate.
  virtual uint64_t FoldBytes(const PreparedUpdate* next) const = 0;
  virtual uint64_t FinishBytes(const PreparedUpdate* next) const = 0;
};

// Thread-safe.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual absl::string_view name() const = 0;   // "cpu", "cuda"
  virtual std::string description() const = 0;  // device, threads
  virtual absl::Status Probe() const = 0;       // OK when it can work on this machine
  // `spec` must have passed Validate.
  virtual absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) = 0;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_ENGINE_H_
