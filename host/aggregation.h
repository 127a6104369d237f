// One aggregation over several tensors: what the server's rounds, the one-shot call and in-process use share. It knows
// nothing of time, network or limits.
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

// A submission ready to be counted: one prepared update a tensor.
struct PreparedSubmission {
  std::vector<std::unique_ptr<PreparedUpdate>> updates;
  size_t memory_bytes() const;
};

// With a memory limit, what it holds (updates, in its callers' memory too, and partial sums), together with the result
// that this would make, stays within the limit; the working memory of merges comes on top. A submission for which there
// is no room makes it fold those it has and let go of them. From then on, where the order of the sums matters
// (OrderMatters), clients must come in ascending order of their ids, so that the fold can go on from there.
//
// It computes in the default floating-point environment, whatever that of its callers is.
class Aggregation {
 public:
  // INVALID_ARGUMENT: a bad tensor spec, no tensors, or two of one name. RESOURCE_EXHAUSTED: results that are bound to
  // be dense are beyond the memory limit, or what a machine can address. `memory_limit`: bytes; 0: none.
  static absl::StatusOr<std::unique_ptr<Aggregation>> Create(Engine& engine, std::vector<TensorSpec> tensors,
                                                             uint64_t memory_limit = 0);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  // Any number of threads at once. `updates[t]` belongs to tensors()[t]; all of one weight.
  absl::StatusOr<PreparedSubmission> Prepare(std::vector<ValidatedUpdate> updates) const;
  // The most memory that takes beside the updates, what it returns included. Saturates.
  uint64_t PrepareBytes(absl::Span<const ValidatedUpdate> updates) const;

  // One thread at a time. `client_id` decides the canonical order. ALREADY_EXISTS: the client was added before.
  // FAILED_PRECONDITION: its id comes before one that has been folded, where the order matters; or keys of others have
  // been changed.
  // RESOURCE_EXHAUSTED: beyond the max_submissions of a fixed-point tensor, or the memory limit even when all others
  // are folded. After an error or exception with num_submissions() as it was, nothing of the submission counts. If that
  // has changed, a partial state may be left behind, and the aggregation must not be finished.
  absl::Status Add(std::string client_id, PreparedSubmission submission);

  // Takes over all submissions of `other`, which has the same tensors and engine. ALREADY_EXISTS; FAILED_PRECONDITION:
  // one of the two has folded submissions already; RESOURCE_EXHAUSTED. Errors and exceptions leave those of the two as
  // they were whose num_submissions() is; the other must not be finished.
  absl::Status MergeFrom(Aggregation&& other);

  // Merges what waits in tensors whose order does not matter, to free memory. Errors as of Accumulator::FoldPending.
  absl::Status MergePending();
  // Folds the submissions added so far in all tensors, as a memory limit does: see above. Errors likewise. An error or
  // exception may leave some tensors folded, and then the order counts from there, or none.
  absl::Status FoldPending();

  // Results in the order of tensors(). Spent afterwards.
  absl::StatusOr<std::vector<Result>> Finish() &&;

  uint64_t num_submissions() const { return client_ids_.size(); }
  size_t memory_bytes() const;
  // What is held, with the most that going on may take for sums and results; with `next` not null, once that is added.
  // Saturates.
  uint64_t BytesWith(const PreparedSubmission* next) const;

 private:
  Aggregation() = default;

  // RESOURCE_EXHAUSTED when a fixed-point tensor has no room for `num_more` submissions.
  absl::Status CheckRoom(uint64_t num_more) const;
  // FAILED_PRECONDITION: a client with this id comes before the other, which is folded.
  absl::Status CheckFollows(absl::string_view client_id, absl::string_view last_folded) const;
  // Folds if that is needed to stay within the memory limit with this submission.
  absl::Status MakeRoomFor(absl::string_view client_id, const PreparedSubmission& submission);
  std::vector<uint32_t> CanonicalOrder() const;
  bool OrderMattersSomewhere() const;

  std::vector<TensorSpec> tensors_;
  uint64_t memory_limit_ = 0;
  std::vector<std::unique_ptr<Accumulator>> accumulators_;
  std::vector<std::string> client_ids_;  // in order of Add
  absl::flat_hash_set<std::string> known_clients_;
  std::vector<uint32_t> folded_;  // the first clients added, in canonical order: those in folds whose order matters
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_AGGREGATION_H_
