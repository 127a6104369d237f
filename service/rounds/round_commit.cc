// Round: commits, from the last chunk to the merge.
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/rounds/round.h"

namespace sparseagg::service {
namespace {

// Returns: the factor of the weight of a commit to a stream; nullopt: there is none. `place`: nullopt: not to a stream.
std::optional<double> FactorOf(const RoundConfig& config, const std::optional<StreamPlace>& place) {
  if (!place.has_value() || !config.stream->has_factors) return std::nullopt;
  return place->weight;
}

// RESOURCE_EXHAUSTED: with `num_more` submissions more there would be more than max_submissions.
absl::Status CheckRoom(const RoundConfig& config, const SubmissionTable& committed, uint64_t num_more,
                       bool is_partial) {
  if (config.max_submissions == 0) return absl::OkStatus();
  // A partial cannot be taken out again, where all servers of a cluster have too many.
  const uint64_t most = is_partial ? config.MaxShare() : config.max_submissions;
  if (committed.num_submissions() + num_more <= most) return absl::OkStatus();
  std::string error = absl::StrCat("there are ", committed.num_submissions(), " of max_submissions ",
                                   config.max_submissions, " submissions already");
  if (is_partial) absl::StrAppend(&error, ", and the partial has ", num_more);
  if (most != config.max_submissions) absl::StrAppend(&error, ", beyond this server's share of ", most);
  return absl::ResourceExhaustedError(error);
}

}  // namespace

void Round::CommitNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                        const UploadHandle::OnCommit& done) {
  const UploadName name(client_id, submission_id);
  std::shared_ptr<UploadHandle> upload;
  std::optional<absl::StatusOr<Receipt>> answer;
  {
    MutexLock lock(&mu_);
    upload = uploads_.FindNamed(name);
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
  if (HasUploadLocked(name, tag)) return CountDuplicate(*FindCommittedLocked(name));
  if (!life_.is_open()) return NotOpenErrorLocked();
  if (uploads_.FindNamed(name) != nullptr) return UploadTable::ReplacedError(name);
  return UploadTable::NoUploadError(name);
}

absl::StatusOr<Receipt> Round::Commit(UploadHandle& handle) {
  UploadTable::Map::node_type removed;  // freed after both locks are released
  MutexLock one_at_a_time(&handle.mu_);
  Upload& upload = handle.upload_;
  {
    MutexLock lock(&mu_);
    if (!uploads_.Contains(handle)) {
      // Discarded, or committed by another call in the meantime.
      RETURN_IF_ERROR(handle.discard_status_);
      return AnswerRepeatLocked(handle);
    }
    if (!upload.complete()) {
      const UploadName name(handle.client_id, handle.submission_id);
      if (handle.is_named_ && HasUploadLocked(name, handle.tag)) {
        // Late or repeated chunks have opened an upload of the committed submission again.
        removed = uploads_.Remove(handle, absl::CancelledError("the submission is committed"));
        return CountDuplicate(*FindCommittedLocked(name));
      }
      return absl::FailedPreconditionError(
          absl::StrCat("commit before the chunk marked last; chunk ", upload.next_sequence(), " is expected next"));
    }
    handle.chunk_hashes_ = upload.chunk_hashes();
    handle.is_committing_ = true;
  }
  absl::StatusOr<Receipt> receipt = ToStatus([&, committed = &upload] { return CommitComplete(handle, *committed); });
  MutexLock lock(&mu_);
  removed = uploads_.Remove(handle, receipt.status());
  if (!receipt.ok()) CountRefusedLocked(handle.client_id, receipt.status());
  return receipt;
}

absl::StatusOr<Receipt> Round::CommitComplete(UploadHandle& handle, Upload& upload) {
  const absl::Duration begin = services_.clock.Monotonic();
  const ContentHash hash = upload.Hash();
  meter_.RecordHash(services_.clock.Monotonic() - begin);
  if (config_->IsIntake()) return CommitToStream(handle, upload, hash);
  {
    MutexLock lock(&mu_);
    handle.hash_ = hash;
    if (auto answer = AnswerWithoutAddLocked(handle, hash)) return *std::move(answer);
    life_.BeginCommit();
  }
  absl::StatusOr<Receipt> receipt = ToStatus([&] { return PrepareAndAdd(handle, upload, hash); });
  MutexLock lock(&mu_);
  if (life_.EndCommit()) PostFinish();
  return receipt;
}

absl::StatusOr<Receipt> Round::AnswerRepeatLocked(const UploadHandle& handle) {
  const std::optional<CommittedSubmission> found = FindCommittedLocked({handle.client_id, handle.submission_id});
  if (found.has_value() && found->hash == handle.hash_) return CountDuplicate(*found);
  if (!life_.is_open()) return NotOpenErrorLocked();
  return UploadTable::NoUploadError({handle.client_id, handle.submission_id});
}

Receipt Round::CountDuplicate(const CommittedSubmission& submission) const {
  Receipt receipt = submission.receipt;
  receipt.duplicate = true;
  meter_.CountDuplicate(receipt);
  return receipt;
}

std::optional<absl::StatusOr<Receipt>> Round::AnswerWithoutAddLocked(const UploadHandle& handle,
                                                                     const ContentHash& hash) {
  if (const CommittedSubmission* const found = committed_.Find(handle.client_id); found != nullptr) {
    if (found->hash != hash) {
      return absl::AlreadyExistsError(absl::StrCat("client '", handle.client_id, "' has committed submission '",
                                                   found->receipt.submission_id, "' with other content"));
    }
    committed_.SetRetry(handle.client_id, handle.submission_id, handle.tag, handle.chunk_hashes_);
    return CountDuplicate(*found);
  }
  // The stream has begun the commit while the version was open (BeginStreamCommit).
  const bool has_begun = handle.stream_.has_value() && !life_.has_ended();
  if (!life_.is_open() && !has_begun) return NotOpenErrorLocked();
  if (absl::Status status = CheckSubmissionLimitLocked(); !status.ok()) return status;
  return std::nullopt;
}

absl::StatusOr<Receipt> Round::CommitToStream(UploadHandle& handle, Upload& upload, const ContentHash& hash) {
  {
    MutexLock lock(&mu_);
    handle.hash_ = hash;
  }
  const std::shared_ptr<StreamCommits> commits = Commits();
  if (commits == nullptr) return absl::NotFoundError(absl::StrCat("no stream '", config_->id, "'"));
  StreamUpload complete{handle.client_id, handle.submission_id, handle.tag, upload, hash, nullptr};
  if (journal_->IsActive()) {
    complete.chunks = [&, num_chunks = upload.next_sequence()](const StreamUpload::TakeChunk& take) -> absl::Status {
      for (uint64_t sequence = 0; sequence < num_chunks; ++sequence) {
        ASSIGN_OR_RETURN(const std::string chunk, journal_->ReadChunk(handle.id_, sequence));
        const absl::string_view span = chunk;
        RETURN_IF_ERROR(take({&span, 1}));
      }
      return absl::OkStatus();
    };
  }
  return commits->Commit(complete);
}

absl::StatusOr<Receipt> Round::PrepareAndAdd(UploadHandle& handle, Upload& upload, const ContentHash& hash) {
  const absl::Duration begin = services_.clock.Monotonic();
  Receipt receipt{handle.client_id, handle.submission_id, /*duplicate=*/false, upload.num_tuples(), upload.num_bytes()};
  if (handle.stream_.has_value()) {
    receipt.client_id = handle.client_of_key_;
    receipt.stream = handle.stream_;
  }
  auto tuples = std::make_shared<const std::vector<uint64_t>>(upload.CountTuples());
  const std::string leaf = MakeLeaf(handle, upload);
  ASSIGN_OR_RETURN(PreparedSubmission prepared, Prepare(handle, upload));
  upload.reservation().SetTo(prepared.memory_bytes());
  const absl::Duration prepared_at = services_.clock.Monotonic();
  const uint64_t bytes = receipt.num_bytes;
  meter_.RecordStage(RoundStage::kPrepare, prepared_at - begin, absl::ZeroDuration(), bytes);

  MutexLock merge(&merge_mu_);
  const absl::Duration merge_begin = services_.clock.Monotonic();
  absl::StatusOr<Receipt> added =
      Add(handle, upload, hash, std::move(receipt), std::move(prepared), std::move(tuples), leaf);
  meter_.RecordAdd(services_.clock.Monotonic() - merge_begin, merge_begin - prepared_at, bytes);
  return added;
}

absl::StatusOr<PreparedSubmission> Round::Prepare(const UploadHandle& handle, Upload& upload) const {
  const Aggregation& aggregation = AggregationForPrepare();
  if (upload.is_partial()) {
    ASSIGN_OR_RETURN(std::vector<PartialBlock> blocks, upload.TakePartial());
    return aggregation.PreparePartial(std::move(blocks));
  }
  ASSIGN_OR_RETURN(std::vector<ValidatedUpdate> updates, upload.TakeUpdates(FactorOf(*config_, handle.stream_)));
  RETURN_IF_ERROR(upload.reservation().Grow(aggregation.PrepareBytes(updates), "sorting a submission"));
  return aggregation.Prepare(std::move(updates));
}

absl::StatusOr<Receipt> Round::Add(UploadHandle& handle, Upload& upload, const ContentHash& hash, Receipt receipt,
                                   PreparedSubmission prepared, TuplesPerTensor tuples, const std::string& leaf) {
  // Allocated before the Add: what is in the sum must be recorded even if no memory is left.
  SubmissionTable::Map records;
  const bool is_sum = prepared.updates.front()->is_partial();
  const uint64_t num_submissions = prepared.num_submissions;
  const std::optional<double> weight = is_sum ? std::nullopt : std::optional(upload.weight());
  records.emplace(
      handle.client_id,
      CommittedSubmission{hash, receipt, upload.next_sequence(), handle.tag, handle.id_, "", "", prepared.clip, weight,
                          FactorOf(*config_, handle.stream_), num_submissions, leaf, upload.chunk_hashes()});
  const SubmissionRecord stored = records.begin()->second.Record();
  {
    MutexLock lock(&mu_);
    if (auto answer = AnswerWithoutAddLocked(handle, hash)) return *std::move(answer);
    if (is_sum || config_->stays_open) RETURN_IF_ERROR(CheckRoom(*config_, committed_, num_submissions, is_sum));
  }
  const uint64_t submission_bytes =
      RoundSum::SubmissionBytes(handle.client_id, handle.submission_id, handle.tag, leaf, upload.chunk_hashes().size());
  RETURN_IF_ERROR(sum_.ReserveForAdd(submission_bytes, prepared, upload.reservation().bytes()));
  // Before the Add, which cannot always be taken back. If the Add fails, the record is removed again.
  absl::Status recorded = journal_->Write(&Store::PutSubmission, handle.client_id, stored);
  if (!recorded.ok()) {
    sum_.UpdateReservation();
    return recorded;
  }
  bool is_partial = false;
  absl::Status added =
      sum_.Add(handle.client_id, std::move(prepared), submission_bytes, upload.reservation(), is_partial);
  if (!added.ok() && !is_partial) {
    journal_->Write(&Store::DeleteSubmission, handle.client_id, handle.id_).IgnoreError();
    return added;
  }
  FailPoint("submission_added");
  if (!added.ok()) {
    journal_->Write(&Store::DeleteSubmission, handle.client_id, handle.id_).IgnoreError();
    return FailAfterPartialAdd(added);
  }
  MutexLock lock(&mu_);
  if (!is_sum) latest_tuples_.swap(tuples);
  handle.is_submission_ = true;
  return RecordLocked(records.extract(records.begin()), std::move(receipt));
}

absl::Status Round::FailAfterPartialAdd(const absl::Status& error) {
  absl::Status failure = absl::InternalError(absl::StrCat("adding a submission failed: ", error.message()));
  {
    MutexLock lock(&mu_);
    if (life_.has_ended()) return failure;
    EndLocked(RoundState::kFailed, failure, failure.ToString(), services_.clock.Now());
  }
  journal_->PutState(RecordState()).IgnoreError();  // a restart would fail again, or not: both are right
  AnnounceEnd();
  return failure;
}

absl::StatusOr<Receipt> Round::RecordLocked(SubmissionTable::Map::node_type record, Receipt receipt) {
  // A round that was cancelled in the meantime counts nothing. A round that was closed counts the submission, since
  // Finish waits for its commit.
  if (life_.has_ended()) return NotOpenErrorLocked();
  if (!IsRestoring()) meter_.CountSubmission(receipt, record.mapped().clip);
  committed_.Insert(std::move(record));
  const uint64_t most = config_->stays_open ? 0 : config_->max_submissions;
  if (most != 0 && life_.is_open() && committed_.num_submissions() >= most) {
    FinalizeLocked(PrepareToFinalizeLocked(), services_.clock.Now());
  }
  return receipt;
}

}  // namespace sparseagg::service
