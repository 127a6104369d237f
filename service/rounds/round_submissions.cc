// Round: the committed submissions, listed and taken out again.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/status_macros.h"
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

absl::StatusOr<Round::SubmissionPage> Round::ListSubmissions(size_t page_size, absl::string_view page_token) const {
  // The token has the time of creation, because a later round may have the same name.
  const std::string created = absl::StrCat(absl::ToUnixNanos(create_time_));
  const std::pair<absl::string_view, absl::string_view> token = absl::StrSplit(page_token, absl::MaxSplits('.', 1));
  if (!page_token.empty() && token.first != created) {
    return absl::InvalidArgumentError(absl::StrCat("page_token '", page_token, "' does not belong to this round"));
  }
  SubmissionPage page;
  MutexLock lock(&mu_);
  for (auto it = page_token.empty() ? committed_.begin() : committed_.upper_bound(token.second); it != committed_.end();
       ++it) {
    if (page.submissions.size() == page_size) {
      page.next_page_token = absl::StrCat(created, ".", page.submissions.back().client_id);
      break;
    }
    page.submissions.push_back(it->second.receipt);
  }
  return page;
}

Round::CommittedMap::const_iterator Round::FindSubmissionLocked(absl::string_view client_id,
                                                                absl::string_view submission_id) const {
  const auto found = committed_.find(client_id);
  if (found == committed_.end() || submission_id.empty()) return found;
  const Committed& committed = found->second;
  const bool is_same = submission_id == committed.receipt.submission_id || submission_id == committed.retry_id;
  return is_same ? found : committed_.end();
}

bool Round::HasSubmission(absl::string_view client_id, absl::string_view submission_id) const {
  MutexLock lock(&mu_);
  return FindSubmissionLocked(client_id, submission_id) != committed_.end();
}

void Round::WithdrawLocked(CommittedMap::const_iterator record, CommittedMap& withdrawn) {
  const Receipt& receipt = record->second.receipt;
  committed_bytes_ -= CommittedBytes(receipt.client_id, receipt.submission_id, record->second.tag);
  --snapshot_.num_submissions;
  snapshot_.num_tuples -= receipt.num_tuples;
  snapshot_.num_bytes -= receipt.num_bytes;
  ++snapshot_.num_withdrawn;
  withdrawn.insert(committed_.extract(record));
}

absl::StatusOr<bool> Round::Withdraw(absl::string_view client_id, absl::string_view submission_id) {
  {
    MutexLock lock(&mu_);  // first of all, so that the call does not wait for a final merge
    if (snapshot_.state != RoundState::kOpen) return NotOpenErrorLocked();
  }
  CommittedMap withdrawn;  // freed after both locks are released
  MutexLock merge(&merge_mu_);
  std::vector<uint32_t> index;
  if (aggregation_ != nullptr) {
    const std::vector<std::string>& ids = aggregation_->client_ids();
    const auto found = std::find(ids.begin(), ids.end(), client_id);
    if (found != ids.end()) index.push_back(static_cast<uint32_t>(found - ids.begin()));
  }
  {
    MutexLock lock(&mu_);
    if (snapshot_.state != RoundState::kOpen) return NotOpenErrorLocked();
    const auto record = FindSubmissionLocked(client_id, submission_id);
    if (record == committed_.end()) return false;
    RETURN_IF_ERROR(aggregation_->CheckKeepsAll());
    RETURN_IF_ERROR(journal_->DeleteSubmission(client_id, record->second.upload));
    WithdrawLocked(record, withdrawn);
  }
  aggregation_->Remove(index);
  UpdateReservation();
  services_.metrics.CountWithdrawn(1);
  return true;
}

absl::Status Round::CheckCountedLocked(absl::Span<const absl::string_view> clients) const {
  if (snapshot_.state == RoundState::kCancelled) return NotOpenErrorLocked();
  for (const absl::string_view client : clients) {
    if (committed_.contains(client)) continue;
    return absl::FailedPreconditionError(absl::StrCat("client '", client, "' has no committed submission in the round",
                                                      snapshot_.state == RoundState::kOpen ? "" : ", which is closed"));
  }
  if (snapshot_.state == RoundState::kOpen || clients.size() == committed_.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the round is ", Name(snapshot_.state), " and counts ",
                                                    committed_.size(), " submissions, not only the ", clients.size(),
                                                    " of the list"));
}

absl::Status Round::CloseWithOnly(absl::Span<const std::string> clients) {
  const std::vector<absl::string_view> kept = SortedUnique(clients);
  {
    MutexLock lock(&mu_);  // first of all, so that the call does not wait for a final merge, which waits for commits
    if (snapshot_.state != RoundState::kOpen && num_committing_ == 0) return CheckCountedLocked(kept);
  }
  CommittedMap withdrawn;  // freed after both locks are released
  MutexLock merge(&merge_mu_);
  std::vector<uint32_t> left_out;
  for (size_t i = 0; aggregation_ != nullptr && i < aggregation_->num_submissions(); ++i) {
    if (!std::binary_search(kept.begin(), kept.end(), aggregation_->client_ids()[i])) {
      left_out.push_back(static_cast<uint32_t>(i));
    }
  }
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckCountedLocked(kept));
    if (snapshot_.state != RoundState::kOpen) return absl::OkStatus();
    if (!left_out.empty()) RETURN_IF_ERROR(aggregation_->CheckKeepsAll());
    const absl::Status refusal = PrepareToFinalizeLocked();
    std::vector<std::pair<std::string, uint64_t>> stored;
    for (size_t i = 0; journal_->IsActive() && i < left_out.size(); ++i) {
      const std::string& client = aggregation_->client_ids()[left_out[i]];
      stored.emplace_back(client, committed_.find(client)->second.upload);
    }
    const Moment now = services_.clock.Now();
    RETURN_IF_ERROR(journal_->PutState(NextStateLocked(StateRecord::Name::kClosed, "", now.wall), stored));
    for (const uint32_t index : left_out) {
      WithdrawLocked(committed_.find(aggregation_->client_ids()[index]), withdrawn);
    }
    FinalizeLocked(refusal, now);
  }
  aggregation_->Remove(left_out);
  UpdateReservation();
  services_.metrics.CountWithdrawn(left_out.size());
  return absl::OkStatus();
}

}  // namespace sparseagg::service
