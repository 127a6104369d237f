// The aggregation of several tensors in memory, without network and deadlines.
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
#include "host/partial.h"
#include "host/privacy/lattice.h"
#include "host/privacy/noise.h"
#include "host/result.h"
#include "host/spec/clip.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg {

// One client's submission, ready to be counted: one prepared update for each tensor, in the order of the tensors, and
// then the squares of those with return_moments.
struct PreparedSubmission {
  std::vector<std::unique_ptr<PreparedUpdate>> updates;
  ClipOutcome clip;              // what the bounds of the tensors have done to it
  privacy::Bytes32 digest{};     // of a private aggregation: of its keys and terms
  uint64_t num_submissions = 1;  // of a partial: those in it
  size_t memory_bytes() const;
};

// One aggregation over several tensors. The server's rounds, the one-shot call and in-process use each own one.
//
//   ASSIGN_OR_RETURN(auto aggregation, Aggregation::Create(*engine, {spec}));
//   // For each submission:
//   ASSIGN_OR_RETURN(PreparedSubmission submission, aggregation->Prepare({std::move(update)}));
//   RETURN_IF_ERROR(aggregation->Add("client 7", std::move(submission)));
//   // Once:
//   ASSIGN_OR_RETURN(std::vector<Result> results, std::move(*aggregation).Finish());
//
// An added update is pending until it is folded into its tensor's base, the sums so far; "merged" means the same. Then
// it is released. Where the order of submissions does not matter, Add merges the pending updates of all tensors once
// they take as much memory as the bases, and at least Engine::min_pending_bytes: then each tuple is merged a constant
// number of times, amortised, and memory stays proportional to the distinct keys. Keys and values that an update
// borrows must stay unchanged until the aggregation releases the shared_ptr that came with them (UpdateColumns::owner).
//
// Memory limit: bases, pending updates and what finishing will need (BytesWith(nullptr)) stay within it. Pending
// updates count with the memory that they borrow. Submissions that are not added yet, and working memory that does not
// grow with the input, come on top. When a submission does not fit, Add folds the pending updates first. Once a fold
// has been done where the order of submissions matters (OrderMatters), every further client id must follow all folded
// ids in the canonical order, which compares ids byte by byte.
//
// Privacy: if the tensors have privacy options, all of them do. Prepare makes integer terms of a submission, the engine
// adds these exactly, and Finish selects keys and adds noise, which depends on the noise source, the tensors and all
// submissions, and on nothing else (docs/privacy.md).
//
// Prepare and PrepareBytes may run on any thread before Finish, also during other calls. All other calls, const ones
// too, are made one at a time. A call that finds no memory returns RESOURCE_EXHAUSTED or throws std::bad_alloc.
// Deterministic: the bits of the results depend only on the tensors, the submissions and their client ids, not on order
// of arrival, threads or engine. Calls compute in the default floating-point environment, whatever the caller's is.
class Aggregation {
 public:
  // Makes an aggregation without submissions. `engine` must outlive the aggregation.
  // `memory_limit`: in bytes; 0: none. `noise`: for privacy; ignored without.
  // Errors: INVALID_ARGUMENT: a bad tensor spec, no tensors, or two tensors of one name; a noise key of 1 to 31 bytes.
  // FAILED_PRECONDITION: the tensors have privacy options, and there is no noise key. RESOURCE_EXHAUSTED: the dense
  // results need more than the memory limit, or more than a machine can address.
  static absl::StatusOr<std::unique_ptr<Aggregation>> Create(Engine& engine, std::vector<TensorSpec> tensors,
                                                             uint64_t memory_limit = 0,
                                                             privacy::NoiseSource noise = {});

  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  // Prepares the updates of one submission; updates[t] belongs to tensors()[t]. Applies the bounds of the tensors
  // first. Requires: all updates were made with the same weight, the client's. This is not checked. Errors: as of
  // Accumulator::Prepare (INVALID_ARGUMENT, OUT_OF_RANGE, RESOURCE_EXHAUSTED), and of ApplyClips where a tensor has
  // bounds. INTERNAL: not one update for each tensor. Thread-safe.
  absl::StatusOr<PreparedSubmission> Prepare(std::vector<ValidatedUpdate> updates) const;
  // Returns: the most memory that Prepare needs in addition to the updates, its return value included. Saturates.
  // Thread-safe.
  uint64_t PrepareBytes(absl::Span<const ValidatedUpdate> updates) const;

  // Prepares a partial, which counts as one client here, and as all its submissions in the results. `blocks`: of
  // PartialBuilder for tensors(). Bounds of the tensors are not applied.
  // Errors: FAILED_PRECONDITION: as of CheckHasPartials. Thread-safe.
  absl::StatusOr<PreparedSubmission> PreparePartial(std::vector<PartialBlock> blocks) const;

  // Counts the submission of a client. The client id decides its place in the canonical order.
  // Requires: `submission` is from an aggregation of the same tensors, on an engine of the same name().
  // Errors: ALREADY_EXISTS: the client has a submission already. OUT_OF_RANGE: integer weights of a mean add up to more
  // than 2^53 with those of a partial. FAILED_PRECONDITION: the order matters, and the id
  // precedes an id that is folded already, or an id that Add must fold to make room. RESOURCE_EXHAUSTED: more than
  // CheckMaxSubmissions allows; beyond the memory limit even with all others folded; or no memory.
  // INTERNAL: an engine invariant was violated. After an error or exception `submission` is lost, and others may have
  // been folded. If num_submissions() is unchanged, nothing of the submission counts. If it has grown, tensors may
  // disagree: discard the aggregation.
  absl::Status Add(std::string client_id, PreparedSubmission submission);

  // Leaves the merging to Finish, for callers that keep all updates until then: merging earlier would free no memory,
  // and would write the rows of the bases once more for each merge. What the memory limit asks for is merged all the
  // same.
  void DeferMerges() { defers_merges_ = true; }

  // Moves all submissions of the aggregation `other` here, behind those that are here (client_ids()), and merges as Add
  // does, but not to stay within the memory limit. After success `other` can only be destroyed.
  // Requires: both have the same tensors, and engines of the same name().
  // Errors: ALREADY_EXISTS: a client has a submission in both. FAILED_PRECONDITION: one of the two has folded
  // submissions whose order matters. RESOURCE_EXHAUSTED: both together are beyond max_submissions or the memory limit;
  // or no memory. INTERNAL: as of Accumulator::MergeFrom. After an error or
  // exception, compare each num_submissions() with its value before: if it is unchanged, that aggregation is intact; if
  // not, discard it.
  absl::Status MergeFrom(Aggregation&& other);

  // Returns: OK while Remove may be called.
  // Errors: FAILED_PRECONDITION: submissions of a tensor are merged; the message says why.
  absl::Status CheckKeepsAll() const;
  // The same for one tensor.
  absl::Status CheckKeepsAll(size_t tensor) const;
  // Takes submissions out, as if they had never been added, and releases their updates. Their clients may be added
  // again, and the clients after them move down in client_ids(). `indices`: there, ascending, without repeats.
  // Requires: CheckKeepsAll(). Allocates nothing.
  void Remove(absl::Span<const uint32_t> indices);

  // Returns: OK if MultiplyWeights may be called with factors other than 0 and 1.
  // Errors: INVALID_ARGUMENT names a tensor whose op ignores weights, or whose terms have their weights on arrival.
  absl::Status CheckTakesFactors() const;
  // Multiplies the weights of all submissions, of 1 for a tensor weighted kUniform; all tensors are weighted kByWeight
  // from now on. `factors`: in the order of client_ids(); as of Accumulator::MultiplyWeights. Requires: CheckKeepsAll()
  // and CheckTakesFactors(). Allocates nothing.
  void MultiplyWeights(absl::Span<const double> factors);

  // Returns: the rows of all submissions for a tensor, in the canonical order. Requires: CheckKeepsAll(tensor). Errors:
  // as of Accumulator::ReadPending.
  absl::StatusOr<std::vector<UpdateRows>> ReadPending(size_t tensor, RowOrder order = RowOrder::kAscending);
  // Returns: an upper bound of the memory that calls of ReadPending for these tensors need in addition to
  // memory_bytes(), without what they return. Saturates.
  uint64_t ReadBytes(absl::Span<const size_t> tensors) const;
  // Returns: the clients in canonical order.
  std::vector<std::string> SortedClientIds() const;

  // Returns: OK if ExportPartial may be called. Errors: FAILED_PRECONDITION: as of CheckHasPartials; or the aggregation
  // is private, whose sums have no noise.
  absl::Status CheckExportsPartial(size_t tensor) const;
  // Returns: unfinished rows of a tensor whose keys are from `first` to `last`, up to `max_rows` of them, and the
  // totals of all submissions. The block ends at its last row, or at `last`. Merges what is pending. Requires:
  // CheckExportsPartial(tensor); max_rows > 0. Errors: as of MergePending. OUT_OF_RANGE: integer weights of a mean add
  // up to more than 2^53.
  absl::StatusOr<PartialBlock> ExportPartial(size_t tensor, uint64_t first, uint64_t last, uint64_t max_rows);

  // Folds the pending updates of the tensors whose order does not matter, to free memory. Any client may come later.
  // Errors: RESOURCE_EXHAUSTED: no memory. INTERNAL: an engine invariant was violated. Nothing is lost; the call may be
  // repeated.
  absl::Status MergePending();
  // Folds the pending updates of all tensors, as Add does when the memory limit needs it. If the order matters for a
  // tensor, clients added later must follow all present ones. This may hold after an error too: some tensors may have
  // been folded, and no submission is lost. Errors: as of MergePending. FAILED_PRECONDITION: a tensor's op is an order
  // statistic, which keeps all submissions; nothing is folded.
  absl::Status FoldPending();

  // Makes the results from bases and pending updates, and cuts them (CutResult). The aggregation is spent, after an
  // error too.
  // Returns: the results in the order of tensors(). Without submissions they have no keys; dense rows are `fill`.
  // Errors: OUT_OF_RANGE: an integer sum overflows int64. FAILED_PRECONDITION: the weights of a mean add up to zero; or
  // there are no submissions, and a tensor of dense layout has EmptyPolicy::kFail. RESOURCE_EXHAUSTED: no memory.
  absl::StatusOr<std::vector<Result>> Finish() &&;
  // The same with the results in the memory of the engine's device. Errors: also those of Accumulator::FinishOnDevice.
  // UNIMPLEMENTED: a tensor has result_top_k, result_min_norm or return_moments.
  absl::StatusOr<std::vector<DeviceResult>> FinishOnDevice() &&;

  uint64_t num_submissions() const { return client_ids_.size(); }  // a partial is one
  // Returns: the submissions, with those in partials in place of the partials.
  uint64_t num_counted() const { return num_counted_; }
  const std::vector<std::string>& client_ids() const { return client_ids_; }  // in order of Add
  // Returns: bytes of pending updates and bases.
  size_t memory_bytes() const;
  // Returns: memory_bytes() and the most that folding and finishing need in addition; if `next` is not null, the same
  // once `next` is added. Saturates.
  uint64_t BytesWith(const PreparedSubmission* next) const;
  // The same for an aggregation that is never finished here: with the most that ReadPending and ExportPartial need.
  uint64_t ExportBytesWith(const PreparedSubmission* next) const;

 private:
  Aggregation() = default;

  // RESOURCE_EXHAUSTED: binned sums, or sums with privacy, do not take `num_more` submissions.
  absl::Status CheckMaxSubmissions(uint64_t num_more) const;
  // OUT_OF_RANGE: integer weights of a mean would add up to more than 2^53 with a partial.
  absl::Status CheckWeightSums(const PreparedSubmission& partial) const;
  // FAILED_PRECONDITION: the client comes before `last_folded`, a client that is folded.
  absl::Status CheckFollows(absl::string_view client_id, absl::string_view last_folded) const;
  // Merges what is pending where the order does not matter, if it has become enough. What was added counts all the
  // same.
  absl::Status MergeIfDue();
  // Folds if the submission needs that to stay within the memory limit. RESOURCE_EXHAUSTED: it does not fit at all.
  absl::Status FitIntoLimit(absl::string_view client_id, const PreparedSubmission& submission);
  // Returns: the indices of client_ids_ in canonical order. Cost: a sort after clients have come or gone, else a copy.
  const std::vector<uint32_t>& CanonicalOrder() const;
  bool OrderMattersSomewhere() const;
  // Checks what privacy needs, and sets is_private_, lattice_ and noise_.
  absl::Status SetPrivacy(privacy::NoiseSource noise);
  // The key of the round's noise: of all submissions, in the canonical order.
  privacy::Bytes32 RoundKey(absl::Span<const uint32_t> order) const;

  // Returns: the result of a tensor, with noise if it is private, cut, and with its moments. `round_key`: RoundKey of a
  // private aggregation.
  absl::StatusOr<Result> FinishTensor(size_t tensor, absl::Span<const uint32_t> order,
                                      const privacy::Bytes32& round_key);

  const Engine* engine_ = nullptr;
  std::vector<TensorSpec> tensors_;
  // Of accumulators_: for each tensor, and then MomentsSpec of those with return_moments.
  std::vector<TensorSpec> specs_;
  std::vector<size_t> moments_;  // of each tensor, the index of its moments in specs_; 0: it has none
  bool has_clips_ = false;       // a tensor has bounds
  // A tensor whose op is an order statistic, which keeps all submissions; null if there is none.
  const TensorSpec* order_statistic_ = nullptr;
  uint64_t memory_limit_ = 0;
  std::vector<std::unique_ptr<Accumulator>> accumulators_;
  std::vector<std::string> client_ids_;  // in order of Add
  uint64_t num_counted_ = 0;
  bool defers_merges_ = false;
  absl::flat_hash_set<std::string> known_clients_;
  bool is_private_ = false;
  privacy::Lattice lattice_;
  privacy::NoiseSource noise_;
  std::vector<privacy::Bytes32> digests_;  // of a private aggregation: of the submissions, in order of Add
  // Indices of the clients that are folded where the order matters, in canonical order. They were added first.
  std::vector<uint32_t> folded_;
  mutable std::vector<uint32_t> order_;  // of the latest CanonicalOrder; another size than client_ids_: out of date
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_AGGREGATION_H_
