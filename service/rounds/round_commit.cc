// Round: commits, from the last chunk to the merge.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/to_status.h"
#include "service/rounds/round.h"

namespace sparseagg::service {
namespace {

// Upper estimate of the memory of a committed client, in the round and in the aggregation, without its ids.
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
    MutexLock lock(&mu_);
    upload = FindNamedLocked(name);
    if (upload == nullptr || upload->tag != tag) {
      answer = AnswerCommitWithoutUploadLocked(name, tag);
    } else {
      upload->waiting_commits_.push_back(done);
      if (upload->waiting_commits_.size() > 1) return;  // the first call answers this one, too
    }
  }
  if (answer.has_value()) return done(*std::move(answer));
  for (bool is_last = false; !is_last;) {
    absl::StatusOr<Receipt> receipt = ToStatus([&] { return Commit(*upload); });  // the second time a duplicate
    UploadHandle::OnCommit next;
    {
      MutexLock lock(&mu_);
      next = std::move(upload->waiting_commits_.front());
      upload->waiting_commits_.pop_front();
      is_last = upload->waiting_commits_.empty();
    }
    next(std::move(receipt));
  }
}

absl::StatusOr<Receipt> Round::AnswerCommitWithoutUploadLocked(UploadName name, const std::string& tag) {
  if (IsCommittedLocked(name, tag)) return CountDuplicateLocked(name.first);
  if (snapshot_.state != RoundState::kOpen) return NotOpenErrorLocked();
  if (FindNamedLocked(name) != nullptr) return ReplacedError(name);
  return NoUploadError(name);
}

absl::StatusOr<Receipt> Round::Commit(UploadHandle& handle) {
  UploadMap::node_type removed;  // freed after both locks are released
  MutexLock one_at_a_time(&handle.mu_);
  Upload& upload = handle.upload_;
  {
    MutexLock lock(&mu_);
    if (!uploads_.contains(handle.id_)) {
      // Discarded, or committed by another call in the meantime.
      RETURN_IF_ERROR(handle.discard_status_);
      return AnswerRepeatLocked(handle);
    }
    if (!upload.complete()) {
      if (handle.is_named_ && IsCommittedLocked({handle.client_id, handle.submission_id}, handle.tag)) {
        // Late or repeated chunks have opened an upload of the committed submission again.
        removed = RemoveLocked(handle, absl::CancelledError("the submission is committed"));
        return CountDuplicateLocked(handle.client_id);
      }
      return absl::FailedPreconditionError(
          absl::StrCat("commit before the chunk marked last; chunk ", upload.next_sequence(), " is expected next"));
    }
    handle.is_committing_ = true;
  }
  absl::StatusOr<Receipt> receipt = ToStatus([&, committed = &upload] { return CommitComplete(handle, *committed); });
  MutexLock lock(&mu_);
  removed = RemoveLocked(handle, receipt.status());
  if (!receipt.ok()) CountRefusedLocked(handle.client_id, receipt.status());
  return receipt;
}

absl::StatusOr<Receipt> Round::CommitComplete(UploadHandle& handle, Upload& upload) {
  const absl::Duration begin = services_.clock.Monotonic();
  const ContentHash hash = upload.Hash();
  stages_.Add(RoundStage::kPrepare, services_.clock.Monotonic() - begin, absl::ZeroDuration(), 0);
  {
    MutexLock lock(&mu_);
    handle.hash_ = hash;
    if (auto answer = AnswerWithoutAddLocked(handle, hash)) return *std::move(answer);
    ++num_committing_;
  }
  absl::StatusOr<Receipt> receipt = ToStatus([&] { return PrepareAndAdd(handle, upload, hash); });
  MutexLock lock(&mu_);
  --num_committing_;
  if (num_committing_ == 0 && snapshot_.state != RoundState::kOpen && !finish_started_) PostFinish();
  return receipt;
}

absl::StatusOr<Receipt> Round::AnswerRepeatLocked(const UploadHandle& handle) {
  const auto found = committed_.find(handle.client_id);
  if (found != committed_.end() && found->second.hash == handle.hash_) return CountDuplicateLocked(handle.client_id);
  if (snapshot_.state != RoundState::kOpen) return NotOpenErrorLocked();
  return NoUploadError({handle.client_id, handle.submission_id});
}

Receipt Round::CountDuplicateLocked(absl::string_view client_id) {
  Receipt receipt = committed_.find(client_id)->second.receipt;
  receipt.duplicate = true;
  services_.metrics.CountSubmission(receipt.duplicate, receipt.num_tuples, receipt.num_bytes);
  return receipt;
}

std::optional<absl::StatusOr<Receipt>> Round::AnswerWithoutAddLocked(const UploadHandle& handle,
                                                                     const ContentHash& hash) {
  const auto found = committed_.find(handle.client_id);
  if (found != committed_.end()) {
    if (found->second.hash != hash) {
      return absl::AlreadyExistsError(absl::StrCat("client '", handle.client_id, "' has committed submission '",
                                                   found->second.receipt.submission_id, "' with other content"));
    }
    found->second.retry_id = handle.submission_id;
    found->second.retry_tag = handle.tag;
    return CountDuplicateLocked(handle.client_id);
  }
  if (snapshot_.state != RoundState::kOpen) return NotOpenErrorLocked();
  if (absl::Status status = CheckSubmissionLimitLocked(); !status.ok()) return status;
  return std::nullopt;
}

void Round::RecordStage(RoundStage stage, absl::Duration busy, absl::Duration wait, uint64_t bytes) const {
  stages_.Add(stage, busy, wait, bytes);
  services_.metrics.ObserveStage(stage, busy);
}

absl::StatusOr<Receipt> Round::PrepareAndAdd(UploadHandle& handle, Upload& upload, const ContentHash& hash) {
  const absl::Duration begin = services_.clock.Monotonic();
  Receipt receipt{handle.client_id, handle.submission_id, /*duplicate=*/false, upload.num_tuples(), upload.num_bytes()};
  auto tuples = std::make_shared<const std::vector<uint64_t>>(upload.CountTuples());
  ASSIGN_OR_RETURN(std::vector<ValidatedUpdate> updates, upload.TakeUpdates());
  const Aggregation& aggregation = AggregationForPrepare();
  RETURN_IF_ERROR(upload.reservation().Grow(aggregation.PrepareBytes(updates), "sorting a submission"));
  ASSIGN_OR_RETURN(PreparedSubmission prepared, aggregation.Prepare(std::move(updates)));
  upload.reservation().SetTo(prepared.memory_bytes());
  const absl::Duration prepared_at = services_.clock.Monotonic();
  const uint64_t bytes = receipt.num_bytes;
  RecordStage(RoundStage::kPrepare, prepared_at - begin, absl::ZeroDuration(), bytes);

  MutexLock merge(&merge_mu_);
  const absl::Duration merge_begin = services_.clock.Monotonic();
  absl::StatusOr<Receipt> added = Add(handle, upload, hash, std::move(receipt), std::move(prepared), std::move(tuples));
  const absl::Duration adding = services_.clock.Monotonic() - merge_begin;
  add_ns_.fetch_add(absl::ToInt64Nanoseconds(adding), std::memory_order_relaxed);
  RecordStage(RoundStage::kMerge, adding, merge_begin - prepared_at, bytes);
  return added;
}

absl::StatusOr<Receipt> Round::Add(UploadHandle& handle, Upload& upload, const ContentHash& hash, Receipt receipt,
                                   PreparedSubmission prepared, TuplesPerTensor tuples) {
  // Allocated before the Add: what is in the sum must be recorded even if no memory is left.
  CommittedMap records;
  records.emplace(handle.client_id, Committed{hash, receipt, upload.next_sequence(), handle.tag, handle.id_, "", ""});
  {
    MutexLock lock(&mu_);
    if (auto answer = AnswerWithoutAddLocked(handle, hash)) return *std::move(answer);
  }
  const uint64_t committed_bytes =
      committed_bytes_ + CommittedBytes(handle.client_id, handle.submission_id, handle.tag);
  RETURN_IF_ERROR(ReserveForAdd(committed_bytes, prepared, upload.reservation().bytes()));
  // Before the Add, which cannot always be taken back. If the Add fails, the record is removed again.
  absl::Status recorded =
      journal_->PutSubmission(handle.client_id, {handle.submission_id, handle.tag, handle.id_, upload.next_sequence(),
                                                 receipt.num_tuples, receipt.num_bytes, hash});
  if (!recorded.ok()) {
    UpdateReservation();
    return recorded;
  }
  const uint64_t num_before = aggregation_->num_submissions();
  absl::Status added = ToStatus(
      [&, aggregation = aggregation_.get()] { return aggregation->Add(handle.client_id, std::move(prepared)); });
  if (!added.ok() && aggregation_->num_submissions() == num_before) {
    UpdateReservation();  // no part of the submission was added
    journal_->DeleteSubmission(handle.client_id, handle.id_).IgnoreError();
    return added;
  }
  FailPoint("submission_added");
  if (!added.ok()) {
    journal_->DeleteSubmission(handle.client_id, handle.id_).IgnoreError();
    return FailAfterPartialAdd(added);
  }
  committed_bytes_ = committed_bytes;
  reservation_.Absorb(upload.reservation());
  UpdateReservation();
  MergeIfMemoryIsShort();
  MutexLock lock(&mu_);
  latest_tuples_.swap(tuples);
  handle.is_submission_ = true;
  return RecordLocked(records.extract(records.begin()), std::move(receipt));
}

absl::Status Round::ReserveForAdd(uint64_t committed_bytes, const PreparedSubmission& prepared, uint64_t upload_bytes) {
  const auto reserve = [&](const Aggregation& aggregation, Reservation& reservation, uint64_t kept_bytes) {
    const uint64_t wanted = SaturatingAdd(kept_bytes, aggregation.BytesWith(&prepared));
    const uint64_t reserved = reservation.bytes() + upload_bytes;
    if (wanted <= reserved) return absl::OkStatus();
    return reservation.Grow(wanted - reserved, "a submission, with the result's growth,");
  };
  absl::Status reserved = reserve(*aggregation_, reservation_, fixed_bytes_ + committed_bytes);
  if (reserved.ok() || !MergesOnArrival()) return reserved;
  RETURN_IF_ERROR(MergePending());
  return reserve(*aggregation_, reservation_, fixed_bytes_ + committed_bytes);
}

absl::Status Round::FailAfterPartialAdd(const absl::Status& error) {
  absl::Status failure = absl::InternalError(absl::StrCat("adding a submission failed: ", error.message()));
  {
    MutexLock lock(&mu_);
    if (HasEnded(snapshot_.state)) return failure;
    EndLocked(RoundState::kFailed, failure, failure.ToString(), services_.clock.Now());
  }
  journal_->PutState(StateToStore()).IgnoreError();  // a restart would fail again, or not: both are right
  AnnounceEnd();
  return failure;
}

uint64_t Round::CommittedBytes(absl::string_view client_id, absl::string_view submission_id, absl::string_view tag) {
  // The client id is twice in committed_ and twice in the aggregation; retries bring another submission id and tag.
  return kSubmissionOverheadBytes + 4 * client_id.size() + 2 * (submission_id.size() + tag.size());
}

void Round::UpdateReservation() {
  reservation_.SetTo(fixed_bytes_ + committed_bytes_ + aggregation_->BytesWith(nullptr));
}

void Round::MergeIfMemoryIsShort() {
  const bool halves = aggregation_->memory_bytes() / 2 >= merged_bytes_;
  // An error is not the submission's, and leaves the aggregation as it was.
  if (tenant_.budget.IsShort() && halves && MergesOnArrival()) MergePending().IgnoreError();
}

absl::Status Round::MergePending() {
  absl::Status merged = ToStatus([aggregation = aggregation_.get()] { return aggregation->MergePending(); });
  if (merged.ok()) merged_bytes_ = aggregation_->memory_bytes();
  UpdateReservation();
  return merged;
}

absl::StatusOr<Receipt> Round::RecordLocked(CommittedMap::node_type record, Receipt receipt) {
  // A round that was cancelled in the meantime counts nothing. A round that was closed counts the submission, since
  // Finish waits for its commit.
  if (HasEnded(snapshot_.state)) return NotOpenErrorLocked();
  ++snapshot_.num_submissions;
  snapshot_.num_tuples += receipt.num_tuples;
  snapshot_.num_bytes += receipt.num_bytes;
  services_.metrics.CountSubmission(receipt.duplicate, receipt.num_tuples, receipt.num_bytes);
  committed_.insert(std::move(record));
  if (snapshot_.state == RoundState::kOpen && snapshot_.num_submissions == config_->max_submissions) {
    FinalizeLocked(PrepareToFinalizeLocked(), services_.clock.Now());
  }
  return receipt;
}

}  // namespace sparseagg::service
