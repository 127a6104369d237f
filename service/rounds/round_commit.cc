// Round: from the last chunk to the merge.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "service/base/to_status.h"
#include "service/rounds/round.h"

namespace sparseagg::service {
namespace {

// What a committed client takes beside its ids, here and in the aggregation. A round figure above the true one.
constexpr uint64_t kSubmissionOverheadBytes = 1024;

}  // namespace

bool Round::MergesOnArrival() const {
  return !std::all_of(config_->tensors.begin(), config_->tensors.end(), OrderMatters);
}

void Round::CommitNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                        const UploadHandle::OnCommit& done) {
  const UploadName name(client_id, submission_id);
  std::shared_ptr<UploadHandle> upload;
  std::optional<absl::StatusOr<Receipt>> answer;
  {
    std::lock_guard lock(mu_);
    upload = FindNamedLocked(name);
    if (upload == nullptr || upload->tag != tag) {
      answer = AnswerForgottenLocked(name, tag);
    } else {
      upload->commits_.push_back(done);
      if (upload->commits_.size() > 1) return;
    }
  }
  if (answer.has_value()) return done(*std::move(answer));
  for (bool is_last = false; !is_last;) {
    absl::StatusOr<Receipt> receipt = ToStatus([&] { return Commit(*upload); });  // after the first a mere look
    UploadHandle::OnCommit next;
    {
      std::lock_guard lock(mu_);
      next = std::move(upload->commits_.front());
      upload->commits_.pop_front();
      is_last = upload->commits_.empty();
    }
    next(std::move(receipt));
  }
}

// Of a commit whose upload is not here.
absl::StatusOr<Receipt> Round::AnswerForgottenLocked(const UploadName& name, const std::string& tag) {
  if (IsRetryLocked(name, tag)) return AnswerDuplicateLocked(name.first);
  if (now_.state != RoundState::kOpen) return NotOpenLocked();
  if (FindNamedLocked(name) != nullptr) return Replaced(name);
  return absl::NotFoundError(
      absl::StrCat("nothing of submission '", name.second, "' of client '", name.first, "' is here"));
}

absl::StatusOr<Receipt> Round::Commit(UploadHandle& upload) {
  std::lock_guard one_at_a_time(upload.mu_);
  {
    std::lock_guard lock(mu_);
    if (!uploads_.contains(upload.id_)) {
      // Let go of, or committed by a call that ran at the same time.
      RETURN_IF_ERROR(upload.verdict_);
      if (now_.state == RoundState::kCancelled) return NotOpenLocked();
      return AnswerDuplicateLocked(upload.client_id);
    }
    if (!upload.upload_.complete() && upload.by_name_ &&
        IsRetryLocked({upload.client_id, upload.submission_id}, upload.tag)) {
      // Of what is committed, opened again by chunks that came late, or twice.
      RemoveLocked(upload, absl::CancelledError("the submission is committed"));
      return AnswerDuplicateLocked(upload.client_id);
    }
    if (!upload.upload_.complete()) {
      return absl::FailedPreconditionError(absl::StrCat("commit before the chunk marked last; chunk ",
                                                        upload.upload_.next_sequence(), " is expected next"));
    }
    upload.committing_ = true;
  }
  absl::StatusOr<Receipt> receipt = ToStatus([&] { return CommitComplete(upload); });
  std::shared_ptr<UploadHandle> removed;  // freed after the lock
  std::lock_guard lock(mu_);
  if (!receipt.ok()) CountRefusedLocked(receipt.status());
  removed = RemoveLocked(upload, receipt.status());
  return receipt;
}

absl::StatusOr<Receipt> Round::CommitComplete(UploadHandle& upload) {
  const absl::Duration begin = server_.clock.Monotonic();
  const ContentHash hash = upload.upload_.Hash();
  stages_.Add(RoundStage::kPrepare, server_.clock.Monotonic() - begin, absl::ZeroDuration(), 0);
  {
    std::lock_guard lock(mu_);
    if (auto answer = AnswerLocked(upload, hash)) return *std::move(answer);
    ++preparing_;
  }
  absl::StatusOr<Receipt> receipt = ToStatus([&] { return PrepareAndAdd(upload, hash); });
  std::lock_guard lock(mu_);
  --preparing_;
  PostFinishLocked();
  return receipt;
}

Receipt Round::AnswerDuplicateLocked(const std::string& client_id) {
  Receipt receipt = committed_.at(client_id).receipt;
  receipt.duplicate = true;
  server_.metrics.CountSubmission(receipt.duplicate, receipt.num_tuples, receipt.num_bytes);
  return receipt;
}

std::optional<absl::StatusOr<Receipt>> Round::AnswerLocked(const UploadHandle& upload, const ContentHash& hash) {
  const auto found = committed_.find(upload.client_id);
  if (found != committed_.end()) {
    if (found->second.hash != hash) {
      return absl::AlreadyExistsError(absl::StrCat("client '", upload.client_id, "' has committed submission '",
                                                   found->second.receipt.submission_id, "' with other content"));
    }
    found->second.retry_id = upload.submission_id;
    found->second.retry_tag = upload.tag;
    return AnswerDuplicateLocked(upload.client_id);
  }
  if (now_.state != RoundState::kOpen) return NotOpenLocked();
  if (config_->submission_limit != 0 && committed_.size() >= config_->submission_limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the round has the server's max_submissions ", config_->submission_limit, " already"));
  }
  return std::nullopt;
}

absl::StatusOr<Receipt> Round::PrepareAndAdd(UploadHandle& upload, const ContentHash& hash) {
  const absl::Duration begin = server_.clock.Monotonic();
  Receipt receipt{upload.client_id, upload.submission_id, /*duplicate=*/false, upload.upload_.num_tuples(),
                  upload.upload_.num_bytes()};
  auto tuples = std::make_shared<const std::vector<uint64_t>>(upload.upload_.CountTuples());
  ASSIGN_OR_RETURN(std::vector<ValidatedUpdate> updates, upload.upload_.TakeUpdates());
  Reservation& reservation = upload.upload_.reservation();
  // Only Add and Finish change the aggregation's prepared state, and Finish waits for preparing_.
  RETURN_IF_ERROR(reservation.Grow(aggregation_->PrepareBytes(updates), "sorting a submission"));
  ASSIGN_OR_RETURN(PreparedSubmission prepared, aggregation_->Prepare(std::move(updates)));
  reservation.SetTo(prepared.memory_bytes());
  const absl::Duration prepared_at = server_.clock.Monotonic();
  const uint64_t bytes = receipt.num_bytes;
  Note(RoundStage::kPrepare, prepared_at - begin, absl::ZeroDuration(), bytes);

  std::lock_guard merge(merge_mu_);
  const absl::Duration merge_begin = server_.clock.Monotonic();
  absl::StatusOr<Receipt> added = Add(upload, hash, std::move(receipt), std::move(prepared), std::move(tuples));
  const absl::Duration adding = server_.clock.Monotonic() - merge_begin;
  add_ns_.fetch_add(absl::ToInt64Nanoseconds(adding), std::memory_order_relaxed);
  Note(RoundStage::kMerge, adding, merge_begin - prepared_at, bytes);
  return added;
}

absl::StatusOr<Receipt> Round::Add(UploadHandle& upload, const ContentHash& hash, Receipt receipt,
                                   PreparedSubmission prepared, TuplesPerTensor tuples) {
  // Made beforehand: what is in the sum is recorded, though there is no memory left.
  std::pair<std::string, Committed> record{
      upload.client_id, Committed{hash, receipt, upload.upload_.next_sequence(), upload.tag, "", ""}};
  {
    std::lock_guard lock(mu_);
    if (auto answer = AnswerLocked(upload, hash)) return *std::move(answer);
    committed_.reserve(committed_.size() + 1);
  }
  // Room for this submission and for the result with it: whatever is accepted can be finished.
  // The client's id is here and in the aggregation twice each; a retry comes with another submission id and tag.
  const uint64_t committed_bytes = committed_bytes_ + kSubmissionOverheadBytes + 4 * upload.client_id.size() +
                                   2 * (upload.submission_id.size() + upload.tag.size());
  const auto reserve = [&]() -> absl::Status {
    const uint64_t wanted = SaturatingAdd(fixed_bytes_ + committed_bytes, aggregation_->BytesWith(&prepared));
    const uint64_t reserved = held_.bytes() + upload.upload_.reservation().bytes();
    if (wanted <= reserved) return absl::OkStatus();
    return held_.Grow(wanted - reserved, "a submission, with the result's growth,");
  };
  absl::Status reserved = reserve();
  if (!reserved.ok() && MergesOnArrival()) {
    RETURN_IF_ERROR(MergePending());
    reserved = reserve();
  }
  RETURN_IF_ERROR(reserved);
  const uint64_t num_before = aggregation_->num_submissions();
  const absl::Status added = ToStatus([&] { return aggregation_->Add(upload.client_id, std::move(prepared)); });
  RunAfterUnlock after;
  if (!added.ok() && aggregation_->num_submissions() == num_before) {
    SetHeld();  // nothing of it is in
    return added;
  }
  if (!added.ok()) {
    // Some of its tensors may be in and others not. Better no sum than a wrong one.
    std::lock_guard lock(mu_);
    const absl::Status failure = absl::InternalError(absl::StrCat("adding a submission failed: ", added.message()));
    if (!HasEnded(now_.state)) EndLocked(RoundState::kFailed, failure, failure.ToString(), after);
    return failure;
  }
  committed_bytes_ = committed_bytes;
  held_.Absorb(upload.upload_.reservation());
  SetHeld();
  // While memory is short nothing waits that merging would halve, so that uploads find room. An error is not this
  // submission's, and leaves everything as it was.
  const bool is_short = server_.budget.limit() != 0 && server_.budget.reserved() > server_.budget.limit() / 2;
  if (is_short && MergesOnArrival() && aggregation_->memory_bytes() / 2 >= merged_bytes_) MergePending().IgnoreError();
  std::lock_guard lock(mu_);
  latest_tuples_.swap(tuples);
  return RecordLocked(std::move(record), std::move(receipt));
}

void Round::SetHeld() { held_.SetTo(fixed_bytes_ + committed_bytes_ + aggregation_->BytesWith(nullptr)); }

absl::Status Round::MergePending() {
  absl::Status merged = ToStatus([&] { return aggregation_->MergePending(); });
  if (merged.ok()) merged_bytes_ = aggregation_->memory_bytes();
  SetHeld();
  return merged;
}

absl::StatusOr<Receipt> Round::RecordLocked(std::pair<std::string, Committed> record, Receipt receipt) {
  // Cancelled in the meantime: nothing counts. Closed in the meantime: this one does, since Finish waits for it.
  if (HasEnded(now_.state)) return NotOpenLocked();
  ++now_.num_submissions;
  now_.num_tuples += receipt.num_tuples;
  now_.num_bytes += receipt.num_bytes;
  server_.metrics.CountSubmission(receipt.duplicate, receipt.num_tuples, receipt.num_bytes);
  committed_.insert(std::move(record));
  if (now_.state == RoundState::kOpen && now_.num_submissions == config_->max_submissions) FinalizeLocked();
  return receipt;
}

}  // namespace sparseagg::service
