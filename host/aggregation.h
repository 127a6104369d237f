// One aggregation over several tensors, without time, network or clients' limits.
#ifndef SPARSEAGG_HOST_AGGREGATION_H_
#define SPARSEAGG_HOST_AGGREGATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/engine.h"
#include "host/result.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg {

// A submission ready to be counted: one prepared update for each tensor.
struct PreparedSubmission {
  std::vector<std::unique_ptr<PreparedUpdate>> updates;
  size_t memory_bytes() const;
};

// One aggregation over several tensors. The server's rounds, the one-shot call and in-process use each own one.
//
//   ASSIGN_OR_RETURN(auto aggregation, Aggregation::Create(*engine, {spec}));
//   ASSIGN_OR_RETURN(PreparedSubmission submission, aggregation->Prepare({std::move(update)}));
//   RETURN_IF_ERROR(aggregation->Add("client 7", std::move(submission)));    // for each submission
//   ASSIGN_OR_RETURN(std::vector<Result> results, std::move(*aggregation).Finish());
//
// Memory limit: updates (those in the callers' memory too), sums and the result together stay within the limit. The
// working memory of merges comes on top. When a submission does not fit, Add folds the pending updates first and
// releases them. Where the order of submissions matters (OrderMatters), clients must from then on come in ascending
// order of their ids, so that the fold can continue.
//
// Prepare and PrepareBytes are thread-safe among themselves and beside Add; all else needs one thread at a time.
// Deterministic: the results depend only on the submissions, not on their order of arrival. Every call computes in the
// default floating-point environment, whatever the caller's is.
class Aggregation {
 public:
  // Makes an aggregation without submissions. Borrows `engine`.
  // `memory_limit`: in bytes; 0: none.
  // Errors: INVALID_ARGUMENT: a bad tensor spec, no tensors, or two tensors of one name. RESOURCE_EXHAUSTED: the dense
  // results need more than the memory limit, or more than a machine can address.
  static absl::StatusOr<std::unique_ptr<Aggregation>> Create(Engine& engine, std::vector<TensorSpec> tensors,
                                                             uint64_t memory_limit = 0);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  // Prepares the updates of one submission; updates[t] belongs to tensors()[t], and all have one weight.
  // Errors: as of Accumulator::Prepare.
  // Thread-safe.
  absl::StatusOr<PreparedSubmission> Prepare(std::vector<ValidatedUpdate> updates) const;
  // Returns: the most memory that Prepare needs in addition to the updates, its return value included. Saturates.
  // Thread-safe.
  uint64_t PrepareBytes(absl::Span<const ValidatedUpdate> updates) const;

  // Counts the submission of a client. The client id decides its place in the canonical order.
  // Errors: ALREADY_EXISTS: the client has a submission already. FAILED_PRECONDITION: the order matters, and the id
  // comes before one that has been folded. RESOURCE_EXHAUSTED: more than max_submissions of a fixed-point tensor; or beyond the memory limit even with all
  // others folded. After an error or exception num_submissions() says what counts: if it is unchanged, nothing of the
  // submission counts; if it has grown, tensors may disagree, and the aggregation must be discarded.
  absl::Status Add(std::string client_id, PreparedSubmission submission);

  // Moves all submissions of `other` here; `other` is spent.
  // Requires: both have the same tensors and engine.
  // Errors: ALREADY_EXISTS: a client has a submission in both. FAILED_PRECONDITION: one of the two has folded
  // submissions whose order matters. RESOURCE_EXHAUSTED: as of Add. After an error or exception each of the two whose
  // num_submissions() is unchanged keeps its submissions; discard the other.
  absl::Status MergeFrom(Aggregation&& other);

  // Merges the pending updates of tensors whose order does not matter, to free memory.
  // Errors: as of Accumulator::FoldPending.
  absl::Status MergePending();
  // Folds the pending updates of all tensors, as Add does when the memory limit needs it.
  // Errors: as of Accumulator::FoldPending. An error may leave some tensors folded; nothing is lost, but clients added
  // later must then follow all present ones.
  absl::Status FoldPending();

  // Merges everything. The aggregation is spent.
  // Returns: the results in the order of tensors().
  // Errors: as of Accumulator::Finish.
  absl::StatusOr<std::vector<Result>> Finish() &&;

  uint64_t num_submissions() const { return client_ids_.size(); }
  // Returns: bytes of updates and sums.
  size_t memory_bytes() const;
  // Returns: memory_bytes() and the most that folding and finishing need in addition; if `next` is not null, the same
  // once `next` is added. Saturates.
  uint64_t BytesWith(const PreparedSubmission* next) const;

 private:
  Aggregation() = default;

  // RESOURCE_EXHAUSTED: a fixed-point tensor does not take `num_more` submissions.
  absl::Status CheckMaxSubmissions(uint64_t num_more) const;
  // FAILED_PRECONDITION: the client comes before `last_folded`, a client that is folded.
  absl::Status CheckFollows(absl::string_view client_id, absl::string_view last_folded) const;
  // Folds if the submission needs that to stay within the memory limit. RESOURCE_EXHAUSTED: it does not fit at all.
  absl::Status FitIntoLimit(absl::string_view client_id, const PreparedSubmission& submission);
  std::vector<uint32_t> CanonicalOrder() const;
  bool OrderMattersSomewhere() const;

  std::vector<TensorSpec> tensors_;
  uint64_t memory_limit_ = 0;
  std::vector<std::unique_ptr<Accumulator>> accumulators_;
  std::vector<std::string> client_ids_;  // in order of Add
  absl::flat_hash_set<std::string> known_clients_;
  // Indices of the clients that are folded where the order matters, in canonical order. They were added first.
  std::vector<uint32_t> folded_;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_AGGREGATION_H_
