// RoundSum: the sum of a round, and the memory that it and the committed submissions take.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_SUM_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_SUM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/aggregation.h"
#include "host/engine.h"
#include "service/admission/memory_budget.h"
#include "service/rounds/round_config.h"
#include "service/rounds/round_snapshot.h"

namespace sparseagg::service {

// An Aggregation with a reservation, which always covers the committed submissions and the result that they make, or
// in a cluster's round their export: whatever is accepted can be finished. Owned by a Round: Create; for each
// submission ReserveForAdd and Add; Finish or Free; ReserveResults. Not thread-safe: Round guards it with a mutex that
// is held while the engine works.
class RoundSum {
 public:
  // `budget`: of the round's tenant, borrowed, as `config` is.
  RoundSum(const RoundConfig& config, MemoryBudget* budget)
      : config_(config), budget_(*budget), reservation_(budget, config.KeepsSubmissions()) {}

  // `noise_key`: of the server; null or empty: there is none.
  // Errors: INVALID_ARGUMENT: of Aggregation::Create. FAILED_PRECONDITION: a private round without a noise key.
  // RESOURCE_EXHAUSTED: no memory for the round and its dense results.
  absl::Status Create(Engine& engine, const std::string* noise_key);
  // Null after Finish and Free. Without what is held.
  const Aggregation* aggregation() const { return aggregation_.get(); }

  // Returns: the memory that the round needs to remember a committed submission.
  static uint64_t SubmissionBytes(absl::string_view client_id, absl::string_view submission_id, absl::string_view tag,
                                  absl::string_view leaf, size_t num_chunk_hashes);
  // Reserves memory for the submission and for the result with it, and merges pending updates if that is needed.
  // `upload_bytes`: that the submission has reserved itself.
  absl::Status ReserveForAdd(uint64_t submission_bytes, const PreparedSubmission& prepared, uint64_t upload_bytes);
  // Undoes ReserveForAdd.
  void UpdateReservation();
  // Adds the submission, takes over `upload`, and merges pending updates if memory is short. Errors: as of
  // Aggregation::Add. `is_partial` is then set if some tensors have changed, after which the round cannot go on.
  absl::Status Add(const std::string& client_id, PreparedSubmission prepared, uint64_t submission_bytes,
                   Reservation& upload, bool& is_partial);
  // Takes submissions out, by their indices in aggregation()->client_ids(). Requires: CheckKeepsAll.
  void Remove(absl::Span<const uint32_t> indices) { RemoveFrom(*aggregation_, indices); }
  // Returns: the aggregation that has the submission of a client; `index`: where it is there, or nothing. Null after
  // Finish and Free.
  Aggregation* Find(absl::string_view client_id, std::vector<uint32_t>& index);
  // Requires: CheckKeepsAll of `holder`, of Find.
  void RemoveFrom(Aggregation& holder, absl::Span<const uint32_t> indices);
  // Merges what is held, before the sum is read. Errors: RESOURCE_EXHAUSTED: no memory. INTERNAL: an earlier call has
  // failed half way; a restart of the server reads the submissions again.
  absl::Status MergeHeld();
  // Multiplies the weights of the submissions. Requires: Aggregation::CheckTakesFactors, and CheckKeepsAll.
  void MultiplyWeights(absl::Span<const double> factors) { aggregation_->MultiplyWeights(factors); }
  // Reads the rows of all submissions for some tensors, as Aggregation::ReadPending; reserves what that needs.
  absl::StatusOr<std::vector<std::vector<UpdateRows>>> ReadPending(absl::Span<const size_t> tensors,
                                                                   RowOrder order = RowOrder::kAscending);
  // Merges what is pending, and reads unfinished rows, as Aggregation::ExportPartial. Requires: CheckExportsPartial.
  absl::StatusOr<PartialBlock> ExportPartial(size_t tensor, uint64_t first, uint64_t last, uint64_t max_rows);
  // Forgets what a committed submission took besides the sum. The caller calls Remove afterwards.
  void ForgetSubmission(uint64_t submission_bytes) { submissions_bytes_ -= submission_bytes; }

  // Computes the results, and frees the aggregation.
  absl::StatusOr<Results> Finish();
  void Free() {
    aggregation_.reset();
    held_.reset();
  }
  // Reserves what the ended round keeps. `results`: may be null. `keeps_submissions`: false if they are dropped.
  void ReserveResults(const Results& results, bool keeps_submissions);

 private:
  absl::Status MergePending();
  // Returns: whether a submission is held.
  bool Holds(const PreparedSubmission& prepared) const;
  // Returns: the memory of aggregation_, with `next` unless that is null, and with what it takes to finish it; in a
  // cluster's round, which is finished elsewhere, to export it.
  uint64_t BytesWith(const PreparedSubmission* next) const {
    return exported_.empty() ? aggregation_->BytesWith(next) : aggregation_->ExportBytesWith(next);
  }
  // Returns: the memory of the sum and of what is held. A cluster's round needs no more than that once all tensors are
  // sorted or merged for its exports.
  uint64_t SumBytes() const;
  // Merges pending updates, if all rounds together have reserved over half of the memory budget, and this round's
  // aggregation has at least doubled since the latest MergePending.
  void MergeIfMemoryIsShort();

  const RoundConfig& config_;
  const MemoryBudget& budget_;
  Engine* engine_ = nullptr;
  std::unique_ptr<Aggregation> aggregation_;
  // Of a cluster's round that is merged on arrival: the submissions beyond this server's share of max_submissions. All
  // servers together may have more than that, of which the coordinator withdraws some. Null: none are held.
  std::unique_ptr<Aggregation> held_;
  bool is_broken_ = false;  // by MergeHeld
  Reservation reservation_;
  uint64_t fixed_bytes_ = 0;        // of reservation_: the round and its spec
  uint64_t submissions_bytes_ = 0;  // of reservation_: the records of committed submissions
  uint64_t merged_bytes_ = 0;       // size of aggregation_ after the latest MergePending
  std::vector<bool> exported_;      // the tensors that are sorted or merged for exports; empty: of no cluster
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_SUM_H_
