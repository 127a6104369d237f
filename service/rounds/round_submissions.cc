// Round: the committed submissions, listed and taken out again.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
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
  if (config_->IsIntake()) return FindCommittedLocked({client_id, submission_id}).has_value();
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

}  // namespace sparseagg::service
