// Round: a close that multiplies the weights of the submissions.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/updates/update.h"
#include "service/rounds/round.h"

namespace sparseagg::service {
namespace {

// Returns: pointers to the factors, in ascending order of client ids.
// Errors: INVALID_ARGUMENT: a client comes twice, or a factor is no finite number ≥ 0.
absl::StatusOr<std::vector<const Round::ClientWeight*>> Sorted(absl::Span<const Round::ClientWeight> weights) {
  std::vector<const Round::ClientWeight*> sorted;
  sorted.reserve(weights.size());
  for (const Round::ClientWeight& weight : weights) {
    if (!std::isfinite(weight.second) || weight.second < 0.0) {
      return absl::InvalidArgumentError(absl::StrCat("client_weights: the weight ", weight.second, " of client '",
                                                     weight.first, "' is not a finite number ≥ 0"));
    }
    sorted.push_back(&weight);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end(),
                                        [](const auto* a, const auto* b) { return a->first == b->first; });
  if (twice == sorted.end()) return sorted;
  return absl::InvalidArgumentError(absl::StrCat("client_weights: client '", (*twice)->first, "' is given twice"));
}

// Errors: INVALID_ARGUMENT: the clients are not those with submissions, or a weight is out of range.
// FAILED_PRECONDITION: the round has privacy.
absl::Status CheckFactors(const RoundConfig& config, const SubmissionTable& committed,
                          absl::Span<const Round::ClientWeight* const> sorted) {
  if (config.HasPrivacy()) {
    return absl::FailedPreconditionError("privacy refuses client_weights: a client could weigh more than its bound");
  }
  auto given = sorted.begin();
  const auto unknown = [](const std::string& client) {
    return absl::InvalidArgumentError(
        absl::StrCat("client_weights: client '", client, "' has no committed submission in the round"));
  };
  for (const auto& [client, submission] : committed.all()) {
    if (given != sorted.end() && (*given)->first < client) return unknown((*given)->first);
    if (given == sorted.end() || (*given)->first != client) {
      return absl::InvalidArgumentError(
          absl::StrCat("client_weights: client '", client,
                       "' has a submission and no weight; each client needs one, 0 leaves the client out"));
    }
    const double product = submission.weight.value_or(1.0) * (*given)->second;
    // Tensors that are weighted uniformly have the factor alone.
    if (!(std::max(product, (*given)->second) <= kMaxWeight)) {
      return absl::InvalidArgumentError(absl::StrCat("client_weights: the weight ", (*given)->second, " of client '",
                                                     client, "' is too large, times that of the submission, ",
                                                     submission.weight.value_or(1.0)));
    }
    ++given;
  }
  return given == sorted.end() ? absl::OkStatus() : unknown((*given)->first);
}

}  // namespace

absl::Status Round::CheckClosedWithLocked(absl::Span<const ClientWeight* const> sorted) const {
  if (life_.state() == RoundState::kCancelled) return NotOpenErrorLocked();
  size_t num_counted = 0;
  bool is_same = true;
  for (const ClientWeight* const weight : sorted) {
    const CommittedSubmission* const found = committed_.Find(weight->first);
    const bool counts = weight->second > 0.0;
    is_same &= counts ? found != nullptr && found->client_weight == weight->second : found == nullptr;
    num_counted += counts ? 1 : 0;
  }
  if (is_same && num_counted == committed_.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the round is ", Name(life_.state()), " and was not closed with these client_weights"));
}

absl::Status Round::CloseWithWeights(absl::Span<const ClientWeight> weights) {
  ASSIGN_OR_RETURN(const std::vector<const ClientWeight*> sorted, Sorted(weights));
  {
    MutexLock lock(&mu_);  // first of all, so that the call does not wait for a final merge
    if (life_.is_closed()) return CheckClosedWithLocked(sorted);
    if (life_.is_open()) {
      return absl::FailedPreconditionError("client_weights need a SEALED round; the round is OPEN");
    }
  }
  SubmissionTable::Map withdrawn;  // freed after both locks are released
  MutexLock merge(&merge_mu_);
  std::vector<uint32_t> left_out;
  std::vector<double> factors;  // of the others, in order of Add
  {
    MutexLock lock(&mu_);
    if (life_.is_closed()) return CheckClosedWithLocked(sorted);
    RETURN_IF_ERROR(CheckFactors(*config_, committed_, sorted));
    const Aggregation& aggregation = *sum_.aggregation();
    const bool is_stored = journal_->IsActive();
    std::vector<std::pair<std::string, SubmissionRecord>> kept;
    for (size_t i = 0; i < aggregation.num_submissions(); ++i) {
      const std::string& client = aggregation.client_ids()[i];
      const double factor =
          (*std::lower_bound(sorted.begin(), sorted.end(), client,
                             [](const ClientWeight* weight, const std::string& id) { return weight->first < id; }))
              ->second;
      if (factor == 0.0) {
        left_out.push_back(static_cast<uint32_t>(i));
        continue;
      }
      factors.push_back(factor);
      if (is_stored) kept.emplace_back(client, committed_.Find(client)->Record()).second.client_weight = factor;
    }
    const bool multiplies = std::any_of(factors.begin(), factors.end(), [](double factor) { return factor != 1.0; });
    if (multiplies) RETURN_IF_ERROR(aggregation.CheckTakesFactors());
    if (!multiplies) factors.clear();
    RETURN_IF_ERROR(FinalizeWithoutLocked(left_out, kept, withdrawn));
    for (const ClientWeight* const weight : sorted) {
      if (weight->second > 0.0) committed_.SetClientWeight(weight->first, weight->second);
    }
  }
  sum_.Remove(left_out);
  if (!factors.empty()) sum_.MultiplyWeights(factors);
  meter_.CountWithdrawn(left_out.size());
  return absl::OkStatus();
}

void Round::MultiplyStoredWeightsLocked() {
  if (sum_.aggregation() == nullptr) return;
  std::vector<double> factors;
  bool multiplies = false;
  for (const std::string& client : sum_.aggregation()->client_ids()) {
    const double factor = committed_.Find(client)->client_weight.value_or(1.0);
    factors.push_back(factor);
    multiplies |= factor != 1.0;
  }
  if (multiplies) sum_.MultiplyWeights(factors);
}

}  // namespace sparseagg::service
