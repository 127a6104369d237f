// Round: the committed submissions, listed, taken out again, and weighted by a close.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/updates/update.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/round.h"

namespace sparseagg::service {
namespace {

std::vector<absl::string_view> SortedUnique(absl::Span<const std::string> ids) {
  std::vector<absl::string_view> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return sorted;
}

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

absl::StatusOr<SubmissionPage> Round::ListSubmissions(size_t page_size, absl::string_view page_token,
                                                      bool with_withdrawn) const {
  absl::string_view last_client;
  if (!page_token.empty()) {
    ASSIGN_OR_RETURN(last_client, PlaceOf(page_token, create_time_));
  }
  SubmissionPage page;
  {
    MutexLock lock(&mu_);
    page.submissions = committed_.List(page_token.empty() ? nullptr : &last_client, page_size + 1);
    if (with_withdrawn && page.submissions.size() <= page_size) page.withdrawn_leaves = certificate_.withdrawn();
  }
  if (page.submissions.size() > page_size) {
    page.submissions.pop_back();
    page.next_page_token = MakePageToken(create_time_, page.submissions.back().key);
  }
  return page;
}

bool Round::HasSubmission(absl::string_view client_id, absl::string_view submission_id) const {
  MutexLock lock(&mu_);
  return committed_.Find(client_id, submission_id) != nullptr;
}

void Round::WithdrawLocked(absl::string_view client_id, SubmissionTable::Map& withdrawn) {
  const CommittedSubmission& submission = *committed_.Find(client_id);
  const uint64_t kept_bytes = submission.leaf.empty() ? 0 : submission.leaf.size() + sizeof(std::string);
  sum_.ForgetSubmission(RoundSum::SubmissionBytes(client_id, submission.receipt.submission_id, submission.tag,
                                                  submission.leaf, submission.chunk_hashes.size()) -
                        kept_bytes);
  committed_.Withdraw(client_id, withdrawn);
  if (kept_bytes > 0) certificate_.AddWithdrawn(std::move(withdrawn.find(client_id)->second.leaf));
}

bool Round::TakesWithdrawalsLocked(bool is_coordinator) const {
  const bool is_of_cluster = !config_->homes.servers.empty();
  return life_.is_open() || (is_coordinator && is_of_cluster && life_.state() == RoundState::kSealed);
}

absl::StatusOr<bool> Round::Withdraw(absl::string_view client_id, absl::string_view submission_id,
                                     bool is_coordinator) {
  if (config_->HasPrivacy()) {
    return absl::FailedPreconditionError("privacy refuses withdrawals: each would be one more look at the same data");
  }
  {
    MutexLock lock(&mu_);  // first of all, so that the call does not wait for a final merge
    if (!TakesWithdrawalsLocked(is_coordinator)) return NotOpenErrorLocked();
  }
  SubmissionTable::Map withdrawn;  // freed after both locks are released
  MutexLock merge(&merge_mu_);
  std::vector<uint32_t> index;
  Aggregation* const holder = sum_.Find(client_id, index);
  {
    MutexLock lock(&mu_);
    if (!TakesWithdrawalsLocked(is_coordinator)) return NotOpenErrorLocked();
    const CommittedSubmission* const submission = committed_.Find(client_id, submission_id);
    if (submission == nullptr) return false;
    RETURN_IF_ERROR(holder->CheckKeepsAll());
    RETURN_IF_ERROR(certificate_.CheckMayWithdraw(submission->leaf));
    certificate_.ReserveWithdrawn(1);
    RETURN_IF_ERROR(journal_->Write(&Store::WithdrawSubmission,
                                    WithdrawnSubmission{std::string(client_id), submission->upload, submission->leaf}));
    WithdrawLocked(client_id, withdrawn);
  }
  sum_.RemoveFrom(*holder, index);
  meter_.CountWithdrawn(1);
  return true;
}

void Round::ReadCommitted(absl::FunctionRef<void(const SubmissionTable::Map&)> read) const {
  MutexLock lock(&mu_);
  read(committed_.all());
}

absl::Status Round::ReadSum(absl::FunctionRef<absl::Status(RoundSum&)> read) {
  MutexLock merge(&merge_mu_);
  return read(sum_);
}

absl::Status Round::CheckCountedLocked(absl::Span<const absl::string_view> clients) const {
  if (life_.state() == RoundState::kCancelled) return NotOpenErrorLocked();
  for (const absl::string_view client : clients) {
    if (committed_.Find(client) != nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat("client '", client, "' has no committed submission in the round",
                                                      life_.is_closed() ? ", which is closed" : ""));
  }
  if (!life_.is_closed() || clients.size() == committed_.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the round is ", Name(life_.state()), " and counts ",
                                                    committed_.size(), " submissions, not only the ", clients.size(),
                                                    " of the list"));
}

absl::Status Round::FinalizeWithoutLocked(absl::Span<const uint32_t> left_out,
                                          absl::Span<const std::pair<std::string, SubmissionRecord>> kept,
                                          SubmissionTable::Map& withdrawn) {
  const Aggregation* const aggregation = sum_.aggregation();
  if (!left_out.empty() && config_->HasPrivacy()) {
    return absl::FailedPreconditionError(
        "privacy refuses only_client_ids that leave submissions out: who counts would depend on who is there");
  }
  if (!left_out.empty()) RETURN_IF_ERROR(aggregation->CheckKeepsAll());
  const absl::Status refusal = PrepareToFinalizeLocked();
  if (config_->has_certificate) certificate_.ReserveWithdrawn(left_out.size());
  std::vector<WithdrawnSubmission> removed;
  for (size_t i = 0; journal_->IsActive() && i < left_out.size(); ++i) {
    const std::string& client = aggregation->client_ids()[left_out[i]];
    const CommittedSubmission& submission = *committed_.Find(client);
    removed.push_back({client, submission.upload, submission.leaf});
  }
  const Moment now = services_.clock.Now();
  RETURN_IF_ERROR(journal_->PutState(life_.NextRecord(StateRecord::Name::kClosed, "", now.wall), removed, kept));
  for (const uint32_t index : left_out) WithdrawLocked(aggregation->client_ids()[index], withdrawn);
  FinalizeLocked(refusal, now);
  return absl::OkStatus();
}

absl::Status Round::CloseWithOnly(absl::Span<const std::string> clients) {
  const std::vector<absl::string_view> kept = SortedUnique(clients);
  {
    MutexLock lock(&mu_);  // first of all, so that the call does not wait for a final merge, which waits for commits
    if (life_.is_closed() && !life_.is_committing()) return CheckCountedLocked(kept);
  }
  SubmissionTable::Map withdrawn;  // freed after both locks are released
  MutexLock merge(&merge_mu_);
  const Aggregation* const aggregation = sum_.aggregation();
  std::vector<uint32_t> left_out;
  for (size_t i = 0; aggregation != nullptr && i < aggregation->num_submissions(); ++i) {
    if (!std::binary_search(kept.begin(), kept.end(), aggregation->client_ids()[i])) {
      left_out.push_back(static_cast<uint32_t>(i));
    }
  }
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckCountedLocked(kept));
    if (life_.is_closed()) return absl::OkStatus();
    RETURN_IF_ERROR(FinalizeWithoutLocked(left_out, /*kept=*/{}, withdrawn));
  }
  sum_.Remove(left_out);
  meter_.CountWithdrawn(left_out.size());
  return absl::OkStatus();
}

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
