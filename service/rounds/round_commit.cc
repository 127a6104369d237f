// Round: commits, from a complete upload to the sum.
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/rounds/round.h"

namespace sparseagg::service {
namespace {

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

absl::Status Round::CheckOpen() const {
  MutexLock lock(&mu_);
  return life_.is_open() ? absl::OkStatus() : NotOpenErrorLocked();
}

absl::Status Round::CheckTakes(absl::string_view client_id) const {
  MutexLock lock(&mu_);
  // A client with a committed submission may upload anything: the commit compares the content.
  if (committed_.Find(client_id) != nullptr) return absl::OkStatus();
  return life_.is_open() ? CheckLimitLocked() : NotOpenErrorLocked();
}

absl::Status Round::CheckLimitLocked() const {
  if (config_->submission_limit == 0 || committed_.size() < config_->submission_limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the round has the server's max_submissions ", config_->submission_limit, " already"));
}

std::optional<CommittedSubmission> Round::FindCommitted(UploadName name, const std::string* tag) const {
  MutexLock lock(&mu_);
  const CommittedSubmission* const found = committed_.Find(name.first);
  const bool is_meant = found != nullptr && (tag == nullptr || committed_.HasUpload(name, *tag));
  return is_meant ? std::optional(*found) : std::nullopt;
}

std::optional<absl::StatusOr<Receipt>> Round::AnswerWithoutAddLocked(const CompleteUpload& upload,
                                                                     const std::string& key, bool has_begun) {
  if (const CommittedSubmission* const found = committed_.Find(key); found != nullptr) {
    if (found->hash != upload.hash) {
      return absl::AlreadyExistsError(
          absl::StrCat("client '", key, "' has committed submission '", found->receipt.submission_id,
                       "' with other content; send the same bytes again, or withdraw it first"));
    }
    committed_.SetRetry(key, upload.submission_id, upload.tag, upload.content.chunk_hashes());
    Receipt receipt = found->receipt;
    receipt.duplicate = true;
    meter_.CountDuplicate(receipt);
    return receipt;
  }
  if (!life_.is_open() && !(has_begun && !life_.has_ended())) return NotOpenErrorLocked();
  if (absl::Status status = CheckLimitLocked(); !status.ok()) return status;
  return std::nullopt;
}

absl::StatusOr<Receipt> Round::Commit(CompleteUpload& upload) {
  {
    MutexLock lock(&mu_);
    if (auto answer = AnswerWithoutAddLocked(upload, upload.client_id, /*has_begun=*/false)) return *std::move(answer);
    life_.BeginCommit();
  }
  return AddBegun(upload, upload.client_id, /*place=*/std::nullopt);
}

absl::Status Round::BeginCommit() {
  MutexLock lock(&mu_);
  if (!life_.is_open()) return NotOpenErrorLocked();
  life_.BeginCommit();
  return absl::OkStatus();
}

absl::StatusOr<Receipt> Round::AddBegun(CompleteUpload& upload, const std::string& key,
                                        const std::optional<StreamPlace>& place) {
  absl::StatusOr<Receipt> receipt = ToStatus([&] { return StoreAndAdd(upload, key, place); });
  MutexLock lock(&mu_);
  if (life_.EndCommit()) PostFinish();
  return receipt;
}

absl::StatusOr<Receipt> Round::StoreAndAdd(CompleteUpload& upload, const std::string& key,
                                           const std::optional<StreamPlace>& place) {
  if (upload.number.has_value()) return PrepareAndAdd({upload, key, place, *upload.number});
  const uint64_t number = journal_->TakeNumber();
  uint64_t sequence = 0;
  absl::StatusOr<Receipt> receipt = ToStatus([&]() -> absl::StatusOr<Receipt> {
    if (upload.chunks != nullptr && journal_->IsActive()) {
      RETURN_IF_ERROR(upload.chunks([&](absl::Span<const absl::string_view> message) {
        return journal_->Write(&Store::PutChunk, number, sequence++, message,
                               static_cast<const UploadRecord*>(nullptr));
      }));
    }
    return PrepareAndAdd({upload, key, place, number});
  });
  // An error leaves chunks behind, which the next restart removes.
  if (sequence > 0 && !upload.is_kept) journal_->Write(&Store::DeleteUpload, number).IgnoreError();
  return receipt;
}

absl::StatusOr<Receipt> Round::PrepareAndAdd(const Entry& entry) {
  Upload& content = entry.upload.content;
  const absl::Duration begin = services_.clock.Monotonic();
  Receipt receipt{entry.upload.client_id, entry.upload.submission_id, /*duplicate=*/false,
                  content.num_tuples(),   content.num_bytes(),        entry.place};
  const std::string leaf = MakeLeaf(entry);
  ASSIGN_OR_RETURN(PreparedSubmission prepared, Prepare(entry));
  content.reservation().SetTo(prepared.memory_bytes());
  const absl::Duration prepared_at = services_.clock.Monotonic();
  const uint64_t bytes = receipt.num_bytes;
  meter_.RecordStage(RoundStage::kPrepare, prepared_at - begin, absl::ZeroDuration(), bytes);

  MutexLock merge(&merge_mu_);
  const absl::Duration merge_begin = services_.clock.Monotonic();
  absl::StatusOr<Receipt> added = Add(entry, std::move(receipt), std::move(prepared), leaf);
  meter_.RecordAdd(services_.clock.Monotonic() - merge_begin, merge_begin - prepared_at, bytes);
  return added;
}

absl::StatusOr<PreparedSubmission> Round::Prepare(const Entry& entry) const {
  const Aggregation& aggregation = AggregationForPrepare();
  Upload& content = entry.upload.content;
  if (content.is_partial()) {
    ASSIGN_OR_RETURN(std::vector<PartialBlock> blocks, content.TakePartial());
    return aggregation.PreparePartial(std::move(blocks));
  }
  ASSIGN_OR_RETURN(std::vector<ValidatedUpdate> updates, content.TakeUpdates(entry.Factor(*config_)));
  RETURN_IF_ERROR(content.reservation().Grow(aggregation.PrepareBytes(updates), "sorting a submission"));
  return aggregation.Prepare(std::move(updates));
}

absl::StatusOr<Receipt> Round::Add(const Entry& entry, Receipt receipt, PreparedSubmission prepared,
                                   const std::string& leaf) {
  CompleteUpload& upload = entry.upload;
  Upload& content = upload.content;
  // Allocated before the Add: what is in the sum must be recorded even if no memory is left.
  SubmissionTable::Map records;
  const bool is_sum = prepared.updates.front()->is_partial();
  const uint64_t num_submissions = prepared.num_submissions;
  const std::optional<double> weight = is_sum ? std::nullopt : std::optional(content.weight());
  records.emplace(entry.key, CommittedSubmission{upload.hash, receipt, content.next_sequence(), upload.tag,
                                                 entry.number, "", "", prepared.clip, weight, entry.Factor(*config_),
                                                 num_submissions, leaf, content.chunk_hashes()});
  const SubmissionRecord stored = records.begin()->second.Record();
  {
    MutexLock lock(&mu_);
    if (auto answer = AnswerWithoutAddLocked(upload, entry.key, entry.place.has_value())) return *std::move(answer);
    if (is_sum || config_->stays_open) RETURN_IF_ERROR(CheckRoom(*config_, committed_, num_submissions, is_sum));
  }
  const uint64_t submission_bytes =
      RoundSum::SubmissionBytes(entry.key, upload.submission_id, upload.tag, leaf, content.chunk_hashes().size());
  RETURN_IF_ERROR(sum_.ReserveForAdd(submission_bytes, prepared, content.reservation().bytes()));
  // Before the Add, which cannot always be taken back. If the Add fails, the record is removed again.
  absl::Status recorded = journal_->Write(&Store::PutSubmission, entry.key, stored);
  if (!recorded.ok()) {
    sum_.UpdateReservation();
    return recorded;
  }
  bool is_partial = false;
  absl::Status added = sum_.Add(entry.key, std::move(prepared), submission_bytes, content.reservation(), is_partial);
  if (added.ok() || is_partial) FailPoint("submission_added");
  if (!added.ok()) {
    journal_->Write(&Store::DeleteSubmission, entry.key, entry.number).IgnoreError();
    return is_partial ? FailAfterPartialAdd(added) : added;
  }
  MutexLock lock(&mu_);
  upload.is_kept = true;
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
