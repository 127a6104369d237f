// One aggregation inside the caller's process: what a server's round is without network and time.
#ifndef SPARSEAGG_PYTHON_ENGINE_LOCAL_ROUND_H_
#define SPARSEAGG_PYTHON_ENGINE_LOCAL_ROUND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/aggregation.h"
#include "host/result.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::python {

// Keys as callers have them: any integers of 32 or 64 bits, or none for 0, 1, …, count − 1.
using InputKeys = std::variant<KeyRun, absl::Span<const uint32_t>, absl::Span<const uint64_t>,
                               absl::Span<const int32_t>, absl::Span<const int64_t>>;

// One tensor of a submission, borrowed.
struct InputTensor {
  size_t tensor = 0;  // index in the specs
  InputKeys keys;
  const std::byte* values = nullptr;  // keys × width of the tensor's dtype; null: none, which only a union takes
};

struct Submission {
  std::string client_id;
  std::optional<double> weight;
  std::vector<InputTensor> tensors;  // ascending by index; those that are missing are not touched
  // Keep the memory of `tensors` alive, and are released on any thread: `key_owner` that of the keys, as soon as they
  // are copied; `owner` that of the values, when the engine no longer needs them.
  std::shared_ptr<const void> owner;
  std::shared_ptr<const void> key_owner;
};

// What a spec says of whole submissions; 0: no limit.
struct RoundLimits {
  uint64_t max_submissions = 0;
  uint64_t max_tuples_per_submission = 0;
  uint64_t max_bytes_per_submission = 0;
  uint64_t min_submissions = 0;
};

struct LocalRoundOptions {
  int threads = 0;            // that prepare and merge; 0: one per core
  uint64_t memory_limit = 0;  // bytes, as of Aggregation; 0: none
};

// Seconds. `prepare` and `add` are summed over the calls, in wall time of each.
struct Times {
  double prepare = 0;
  double add = 0;
  double finish = 0;
};

struct Machine;  // an engine and the threads that prepare for it

// Thread-safe: submissions may be added by several threads at once, and Finish waits for them. Determinism: as of
// Aggregation, so that neither threads nor batches can be seen in the result.
class LocalRound {
 public:
  // INVALID_ARGUMENT as of Aggregation::Create.
  static absl::StatusOr<std::unique_ptr<LocalRound>> Create(std::vector<TensorSpec> tensors, const RoundLimits& limits,
                                                            const LocalRoundOptions& options);

  // Validates, prepares (side by side) and adds. The first submission that is refused ends it, with those before it
  // added and nothing of it or those after it: INVALID_ARGUMENT, OUT_OF_RANGE, RESOURCE_EXHAUSTED, ALREADY_EXISTS, as
  // a server answers; FAILED_PRECONDITION beyond max_submissions, and as of Aggregation::Add. The client's id comes
  // before what is wrong with its update. After an error that may have left part of a submission behind, the round
  // refuses everything: FAILED_PRECONDITION.
  absl::Status Add(std::vector<Submission> submissions);

  // Takes over all submissions of `other`, which has the same tensors and is spent afterwards. ALREADY_EXISTS,
  // RESOURCE_EXHAUSTED and FAILED_PRECONDITION leave both as they were. Where memory runs out in the middle
  // (std::bad_alloc), both refuse everything from then on.
  absl::Status MergeFrom(LocalRound& other);

  // One result a tensor; the round is spent, whether or not it succeeds. Errors as of Accumulator::Finish;
  // FAILED_PRECONDITION below min_submissions, which leaves the round as it was.
  absl::StatusOr<std::vector<Result>> Finish();

  // Whether no value is NaN or ±Inf.
  bool IsFinite(const Result& result) const;

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // About, of the submissions that are prepared side by side; who makes submissions need not have more at a time.
  uint64_t batch_bytes() const { return batch_bytes_; }
  // Of the keys, in the tensor's width, and values.
  uint64_t BytesOf(const Submission& submission) const;
  std::string engine_name() const;  // "cpu (CPU, 2 threads)"
  uint64_t num_submissions() const;
  uint64_t num_tuples() const;
  uint64_t num_bytes() const;
  size_t memory_bytes() const;
  Times times() const;

 private:
  struct Prepared {
    absl::Status status;
    PreparedSubmission submission;
    uint64_t num_tuples = 0;
    uint64_t num_bytes = 0;
  };

  LocalRound(std::vector<TensorSpec> tensors, const RoundLimits& limits, uint64_t batch_bytes, Machine& machine)
      : tensors_(std::move(tensors)), limits_(limits), batch_bytes_(batch_bytes), machine_(machine) {}

  absl::Status CheckOpen() const;
  absl::Status AddBatch(absl::Span<Submission> batch);
  Prepared Prepare(const Submission& submission) const;
  absl::Status PrepareInto(const Submission& submission, Prepared& out) const;
  absl::Status CheckSubmission(const Submission& submission) const;
  absl::Status AddPrepared(Submission& submission, Prepared& prepared);

  const std::vector<TensorSpec> tensors_;
  const RoundLimits limits_;
  const uint64_t batch_bytes_;
  Machine& machine_;

  // Shared by those that add, exclusive for what ends the round.
  mutable std::shared_mutex life_;
  std::unique_ptr<Aggregation> aggregation_;  // null: spent
  mutable std::mutex mu_;                     // guards adding to aggregation_, and what follows
  uint64_t num_submissions_ = 0;
  uint64_t num_tuples_ = 0;
  uint64_t num_bytes_ = 0;
  Times times_;
};

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_LOCAL_ROUND_H_
