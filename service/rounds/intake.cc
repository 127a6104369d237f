#include "service/rounds/intake.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/refusals.h"

namespace sparseagg::service {
namespace {

// FAILED_PRECONDITION: an upload with another tag has taken the name. NOT_FOUND: no upload has it.
absl::Status ReplacedError(UploadName name) {
  return absl::FailedPreconditionError(
      absl::StrCat("another upload, with other content or other chunks, has replaced this upload of submission '",
                   name.second, "' of client '", name.first, "'"));
}

absl::Status NoUploadError(UploadName name) {
  return absl::NotFoundError(
      absl::StrCat("the round has no upload of submission '", name.second, "' of client '", name.first, "'"));
}

}  // namespace

void RecentRefusals::Add(absl::string_view client_id, const absl::Status& status, absl::Time time) {
  const absl::Status kept = ToStatus([&] {
    if (memory_.bytes() == 0) {
      absl::Status reserved = memory_.Grow(kListBytes, "a list of refusals", "");
      if (!reserved.ok()) return reserved;
      refusals_.reserve(kMaxRefusals);
    }
    Refusal refusal{std::string(client_id), status.code(), std::string(Shorten(status.message(), kMaxReasonBytes)),
                    time};
    if (refusals_.size() < kMaxRefusals) {
      refusals_.push_back(std::move(refusal));
    } else {
      std::rotate(refusals_.begin(), refusals_.begin() + 1, refusals_.end());
      refusals_.back() = std::move(refusal);
    }
    return absl::OkStatus();
  });
  kept.IgnoreError();
}

Intake::Intake(SubmissionTarget& target, std::shared_ptr<const RoundConfig> config, const RoundServices& services,
               Tenant& tenant, std::shared_ptr<RoundJournal> journal, RoundMeter& meter)
    : target_(target),
      config_(std::move(config)),
      services_(services),
      tenant_(tenant),
      journal_(std::move(journal)),
      meter_(meter),
      closed_waits_(services.clock, services.timer),
      recent_refusals_(&tenant.budget) {}

IntakeSnapshot Intake::Snapshot() const {
  MutexLock lock(&mu_);
  return {uploads_.size(), num_refused_, recent_refusals_.list()};
}

size_t Intake::num_recent_refusals() const {
  MutexLock lock(&mu_);
  return recent_refusals_.list().size();
}

absl::Status Intake::CheckRate(absl::string_view client_id) {
  if (tenant_.submissions.TryTake()) return absl::OkStatus();
  services_.metrics.CountTenantRefusal("submissions_per_second");
  return CountRefused(
      client_id, RetryLater(absl::StrCat("the tenant has begun the server's max_submissions_per_second_per_tenant ",
                                         tenant_.submissions.per_second(), " uploads in the last second")));
}

absl::StatusOr<Permit> Intake::Admit(absl::string_view client_id) {
  if (absl::Status takes = target_.CheckTakes(client_id); !takes.ok()) return CountRefused(client_id, std::move(takes));
  if (tenant_.uploads.TryAcquire()) return Permit(&tenant_.uploads);
  return CountRefused(client_id, OpenLimitError(tenant_.uploads, "uploads", "uploads", services_.metrics));
}

absl::StatusOr<Receipt> Intake::Submit(const std::string& client_id, const std::string& submission_id,
                                       const Chunk& chunk) {
  RETURN_IF_ERROR(CheckRate(client_id));
  ASSIGN_OR_RETURN(const Permit permit, Admit(client_id));
  const std::string tag;  // empty: only named uploads have one
  absl::StatusOr<Receipt> receipt = ToStatus([&]() -> absl::StatusOr<Receipt> {
    RETURN_IF_ERROR(CheckWeightHasEffect(config_->tensors, chunk.weight));
    Upload content(config_, &tenant_.budget);
    const absl::Duration begin = services_.clock.Monotonic();
    RETURN_IF_ERROR(content.Append(chunk));
    const absl::Duration decoded = services_.clock.Monotonic();
    meter_.RecordStage(RoundStage::kDecode, decoded - begin, absl::ZeroDuration(), BytesOf(chunk));
    CompleteUpload complete{client_id, submission_id, tag, content, content.Hash()};
    meter_.RecordHash(services_.clock.Monotonic() - decoded);
    if (journal_->IsActive()) {
      complete.chunks = [&chunk](const CompleteUpload::TakeChunk& take) { return take(chunk.message); };
    }
    return target_.Commit(complete);
  });
  if (!receipt.ok()) return CountRefused(client_id, receipt.status());
  return receipt;
}

absl::StatusOr<std::shared_ptr<UploadHandle>> Intake::OpenStreamUpload(const std::string& client_id,
                                                                       const std::string& submission_id,
                                                                       UploadHandle::OnDiscard on_discard) {
  RETURN_IF_ERROR(CheckRate(client_id));
  return Open({client_id, submission_id}, /*is_named=*/false, /*tag=*/"", std::move(on_discard),
              journal_->TakeNumber());
}

absl::StatusOr<std::shared_ptr<UploadHandle>> Intake::Open(UploadName name, bool is_named, const std::string& tag,
                                                           UploadHandle::OnDiscard on_discard, uint64_t number) {
  while (true) {
    uint64_t num_closes;
    TuplesPerTensor expected;
    {
      MutexLock lock(&mu_);
      num_closes = num_closes_;
      expected = latest_tuples_;
    }
    ASSIGN_OR_RETURN(Permit permit, Admit(name.first));
    auto upload = std::make_shared<UploadHandle>(name, tag, config_, &tenant_.budget, std::move(permit), journal_);
    {
      MutexLock upload_lock(&upload->mu_);
      upload->upload_.ExpectTuples(std::move(expected));
    }
    upload->id_ = number;
    upload->is_named_ = is_named;
    upload->last_chunk_at_ = services_.clock.Monotonic();
    MutexLock lock(&mu_);
    if (num_closes != num_closes_) continue;  // the target may not take the upload any more
    // All allocations come before the upload is in both maps: an upload that is in one of them would keep its permit.
    decltype(by_name_) named;
    if (is_named) {
      if (std::shared_ptr<UploadHandle> other = FindNamedLocked(name)) return other;  // another call was quicker
      named.emplace(upload->name(), upload);
      StartTimerLocked(upload);
    }
    uploads_.emplace(number, upload);
    by_name_.merge(named);
    upload->on_discard_ = std::move(on_discard);
    return upload;
  }
}

void Intake::StartTimerLocked(const std::shared_ptr<UploadHandle>& upload) {
  upload->timer_ = services_.timer.Schedule(
      upload->last_chunk_at_ + services_.limits.upload_timeout,
      [this, weak_owner = std::weak_ptr<const void>(target_.Keep()), weak_upload = std::weak_ptr(upload)] {
        const auto owner = weak_owner.lock();
        const auto timed = weak_upload.lock();
        if (owner != nullptr && timed != nullptr) OnTimer(timed);
      });
}

void Intake::OnTimer(const std::shared_ptr<UploadHandle>& upload) {
  const bool counts = !target_.FindCommitted(upload->name(), &upload->tag).has_value();
  MutexLock lock(&mu_);
  if (!uploads_.contains(upload->id_) || upload->is_committing_) return;
  const absl::Duration timeout = services_.limits.upload_timeout;
  if (services_.clock.Monotonic() - upload->last_chunk_at_ < timeout) {
    StartTimerLocked(upload);  // a chunk has come since
    return;
  }
  const absl::Status status =
      WithReason(absl::DeadlineExceededError(absl::StrCat("the upload was discarded: no chunk came for upload_timeout ",
                                                          absl::FormatDuration(timeout))),
                 "UPLOAD_TIMED_OUT");
  PostNotifyDiscarded();
  DiscardLocked(*upload, status, counts);
}

std::shared_ptr<UploadHandle> Intake::FindNamedLocked(UploadName name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Intake::Uploads::node_type Intake::RemoveLocked(UploadHandle& upload, absl::Status status) {
  Uploads::node_type removed = uploads_.extract(upload.id_);
  if (removed.empty()) return removed;
  if (upload.is_named_) {
    by_name_.erase(upload.name());
    services_.timer.Cancel(upload.timer_);
  }
  upload.discard_status_ = std::move(status);
  upload.is_removed_ = true;
  return removed;
}

Intake::Uploads::node_type Intake::ReplaceLocked(UploadHandle& upload) {
  if (upload.is_committing_) {
    // The commit goes on without the name. Whichever upload is committed last is compared with the other.
    by_name_.erase(upload.name());
    upload.is_named_ = false;
    services_.timer.Cancel(upload.timer_);
    return {};
  }
  Uploads::node_type removed = RemoveLocked(upload, CountRefusedLocked(upload.client_id, ReplacedError(upload.name())));
  upload.permit_.Release();  // now: a thread that appends a chunk may keep the handle for a while
  return removed;
}

void Intake::DiscardLocked(UploadHandle& upload, const absl::Status& status, bool counts_as_refused) {
  Uploads::node_type removed = RemoveLocked(upload, status);
  if (removed.empty()) return;
  discarded_.insert(std::move(removed));
  // Two kinds are not counted as refused: uploads of a one-shot call (its round has no id), which end with the call,
  // and those that late chunks of a committed submission have opened again.
  upload.counts_as_refused_ = counts_as_refused && !config_->id.empty();
  if (upload.counts_as_refused_) ++num_refused_;
}

void Intake::Close(const absl::Status& status, absl::FunctionRef<bool(const std::string&)> may_retry) {
  MutexLock lock(&mu_);
  ++num_closes_;
  for (auto it = uploads_.begin(); it != uploads_.end();) {
    UploadHandle& upload = *(it++)->second;
    if (!upload.is_committing_ && !may_retry(upload.client_id)) DiscardLocked(upload, status, true);
  }
}

void Intake::PostNotifyDiscarded() {
  services_.pool.Post([this, owner = target_.Keep()] { NotifyDiscarded(); });
}

void Intake::NotifyDiscarded() {
  (void)target_.state();  // takes the target's lock: a close that has posted this has now discarded the uploads
  Uploads discarded;
  {
    MutexLock lock(&mu_);
    discarded.swap(discarded_);
  }
  // Read without the lock: a discarded upload does not change any more.
  for (const auto& [id, upload] : discarded) {
    if (upload->counts_as_refused_) {
      meter_.CountRefused(upload->client_id, upload->discard_status_);
      MutexLock lock(&mu_);
      recent_refusals_.Add(upload->client_id, upload->discard_status_, services_.clock.WallTime());
    }
    if (upload->on_discard_ != nullptr) upload->on_discard_(upload->discard_status_);
  }
}

absl::Status Intake::CountRefusedLocked(absl::string_view client_id, absl::Status refusal) {
  ++num_refused_;
  meter_.CountRefused(client_id, refusal);
  recent_refusals_.Add(client_id, refusal, services_.clock.WallTime());
  return refusal;
}

absl::Status Intake::CountRefused(absl::string_view client_id, absl::Status refusal) {
  MutexLock lock(&mu_);
  return CountRefusedLocked(client_id, std::move(refusal));
}

void Intake::Discard(UploadHandle& upload) {
  Uploads::node_type removed;  // freed after mu_ is released
  MutexLock lock(&mu_);
  removed = RemoveLocked(upload, absl::CancelledError("the upload was discarded"));
}

void Intake::Refuse(UploadHandle& upload, const absl::Status& status) {
  Uploads::node_type removed;  // freed after mu_ is released
  MutexLock lock(&mu_);
  removed = RemoveLocked(upload, status);
  if (!removed.empty()) (void)CountRefusedLocked(upload.client_id, status);
}

absl::Status Intake::AppendChunk(UploadHandle& handle, const Chunk& chunk, const ContentHash* hash, bool is_restored) {
  MutexLock one_at_a_time(&handle.mu_);
  Upload& content = handle.upload_;
  const absl::Duration begin = services_.clock.Monotonic();
  const uint64_t expected = content.next_sequence();
  bool is_named = false;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(handle.discard_status_);
    is_named = handle.is_named_;
    if (chunk.sequence == expected) handle.last_chunk_at_ = begin;  // repeats and gaps do not keep the upload
  }
  // By pointer: in a lambda the thread-safety analysis does not know that the upload's mutex is held.
  absl::Status status = ToStatus([&, appended = &content]() -> absl::Status {
    if (chunk.sequence == expected && !is_restored) {
      RETURN_IF_ERROR(CheckWeightHasEffect(config_->tensors, chunk.weight));
    }
    return appended->Append(chunk, hash);
  });
  const absl::Duration end = services_.clock.Monotonic();
  meter_.RecordStage(RoundStage::kDecode, end - begin, absl::ZeroDuration(), BytesOf(chunk));
  const bool is_appended = content.next_sequence() != expected;
  if (is_appended && journal_->IsActive()) {
    const UploadRecord opened{handle.client_id, handle.submission_id, handle.tag};
    handle.has_stored_chunks_ = true;
    status = ToStatus([&] {
      return journal_->Write(&Store::PutChunk, handle.id_, expected, chunk.message,
                             expected == 0 && is_named ? &opened : nullptr);
    });
  }
  if (is_appended && status.ok()) {
    MutexLock lock(&mu_);
    handle.last_chunk_at_ = end;
    handle.progress_ = {content.next_sequence(), content.num_tuples(), content.complete()};
  } else if (!status.ok()) {
    // A gap ends a stream upload; a named upload goes on and waits for the chunk. So it does after a false repeat.
    const bool is_gap = !is_appended && (absl::IsFailedPrecondition(status) || absl::IsAlreadyExists(status));
    if (!is_gap || hash == nullptr) Refuse(handle, status);
  }
  return status;
}

absl::StatusOr<UploadProgress> Intake::PutChunk(const std::string& client_id, const std::string& submission_id,
                                                const Chunk& chunk, const std::string& tag) {
  const UploadName name(client_id, submission_id);
  const ContentHash hash = HashOfChunk(chunk);
  std::shared_ptr<UploadHandle> upload;
  while (true) {
    Uploads::node_type replaced;  // freed before the chunk is appended: its memory is for this upload
    {
      MutexLock lock(&mu_);
      upload = FindNamedLocked(name);
      if (upload != nullptr && upload->tag == tag) {
        if (!upload->is_committing_) break;
        // The upload is complete. Its mutex is held by the commit, so that the answer must not need the upload itself.
        RETURN_IF_ERROR(CheckRepeat(chunk, hash, upload->chunk_hashes_));
        return upload->progress_;
      }
    }
    const std::optional<CommittedSubmission> committed = target_.FindCommitted(name, &tag);
    if (committed.has_value()) {
      // A late chunk of a committed submission is answered with its progress. Another chunk 0 where there is no upload
      // opens one, and the commit compares: it may begin the same content in other chunks.
      const absl::Span<const ContentHash> hashes = committed->ChunkHashesOf(name.second, tag);
      if (!hashes.empty()) {
        absl::Status repeat = CheckRepeat(chunk, hash, hashes);
        if (repeat.ok()) return committed->progress();
        if (chunk.sequence > 0 || upload != nullptr) return repeat;
      }
    }
    if (upload != nullptr) {
      if (chunk.sequence > 0 || committed.has_value()) return ReplacedError(name);
      MutexLock lock(&mu_);
      if (FindNamedLocked(name) == upload) replaced = ReplaceLocked(*upload);
    }
    if (chunk.sequence > 0) {
      // Not counted as refused: if there was an upload, it was counted when the intake discarded it.
      RETURN_IF_ERROR(target_.CheckOpen());
      return absl::FailedPreconditionError(absl::StrCat(
          "chunk ", chunk.sequence, " came where chunk 0 is expected next: the round has no chunk of this upload, or ",
          "has discarded the upload because no chunk came for upload_timeout ",
          absl::FormatDuration(services_.limits.upload_timeout)));
    }
    RETURN_IF_ERROR(CheckRate(client_id));
    ASSIGN_OR_RETURN(upload, Open(name, /*is_named=*/true, tag, nullptr, journal_->TakeNumber()));
    if (upload->tag == tag) break;
  }
  RETURN_IF_ERROR(AppendChunk(*upload, chunk, &hash));
  MutexLock lock(&mu_);
  return upload->progress_;
}

void Intake::RefuseNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                         const absl::Status& status) {
  Uploads::node_type removed;  // freed after mu_ is released
  MutexLock lock(&mu_);
  (void)CountRefusedLocked(client_id, status);
  const std::shared_ptr<UploadHandle> upload = FindNamedLocked({client_id, submission_id});
  if (upload != nullptr && upload->tag == tag && !upload->is_committing_) removed = RemoveLocked(*upload, status);
}

absl::StatusOr<UploadProgress> Intake::GetProgress(const std::string& client_id, const std::string& submission_id,
                                                   const std::string& tag) {
  const UploadName name(client_id, submission_id);
  std::optional<UploadProgress> progress;
  {
    // Before the question whether it is committed: a commit records the submission, and then removes the upload.
    MutexLock lock(&mu_);
    const std::shared_ptr<UploadHandle> upload = FindNamedLocked(name);
    if (upload != nullptr) progress = upload->tag == tag ? upload->progress_ : UploadProgress{};
  }
  if (const auto committed = target_.FindCommitted(name, &tag)) return committed->progress();
  if (!progress.has_value()) return NoUploadError(name);
  return *progress;
}

absl::Status Intake::Restore(uint64_t number, const UploadRecord& record, const ChunkSource& chunks,
                             uint64_t* num_chunks) {
  ASSIGN_OR_RETURN(const std::shared_ptr<UploadHandle> upload,
                   Open({record.client_id, record.submission_id}, /*is_named=*/true, record.tag, nullptr, number));
  {
    MutexLock one_at_a_time(&upload->mu_);
    upload->has_stored_chunks_ = true;
  }
  absl::Status read = chunks([&](const Chunk& chunk) {
    const ContentHash hash = HashOfChunk(chunk);
    absl::Status appended = AppendChunk(*upload, chunk, &hash, /*is_restored=*/true);
    if (appended.ok()) ++*num_chunks;
    return appended;
  });
  if (!read.ok() && (!absl::IsAborted(read) || *num_chunks == 0)) Discard(*upload);
  return read;
}

void Intake::CommitNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                         const UploadHandle::OnCommit& done) {
  const UploadName name(client_id, submission_id);
  std::shared_ptr<UploadHandle> upload;
  bool is_there = false;
  {
    MutexLock lock(&mu_);
    upload = FindNamedLocked(name);
    is_there = upload != nullptr && upload->tag == tag;
    if (is_there) {
      upload->waiting_commits_.push_back(done);
      if (upload->waiting_commits_.size() > 1) return;  // the first call answers this one, too
    }
  }
  if (!is_there) {
    if (const auto committed = target_.FindCommitted(name, &tag)) return done(CountDuplicate(*committed));
    if (absl::Status open = target_.CheckOpen(); !open.ok()) return done(std::move(open));
    return done(upload != nullptr ? ReplacedError(name) : NoUploadError(name));
  }
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

absl::StatusOr<Receipt> Intake::Commit(UploadHandle& handle) {
  Uploads::node_type removed;  // freed after both locks are released
  MutexLock one_at_a_time(&handle.mu_);
  Upload& upload = handle.upload_;
  bool is_there;
  bool is_named;
  std::optional<ContentHash> hash;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(handle.discard_status_);
    is_there = uploads_.contains(handle.id_);
    is_named = handle.is_named_;
    hash = handle.hash_;
    if (is_there && upload.complete()) {
      handle.chunk_hashes_ = upload.chunk_hashes();
      handle.is_committing_ = true;
    }
  }
  if (!is_there) return AnswerRepeat(handle, hash);  // committed by another call in the meantime
  if (!upload.complete()) {
    const auto committed = is_named ? target_.FindCommitted(handle.name(), &handle.tag) : std::nullopt;
    if (committed.has_value()) {
      // Late or repeated chunks have opened an upload of the committed submission again.
      MutexLock lock(&mu_);
      removed = RemoveLocked(handle, absl::CancelledError("the submission is committed"));
      return CountDuplicate(*committed);
    }
    return absl::FailedPreconditionError(
        absl::StrCat("commit before the chunk marked last; chunk ", upload.next_sequence(), " is expected next"));
  }
  absl::StatusOr<Receipt> receipt = ToStatus([&, committed = &upload] { return CommitComplete(handle, *committed); });
  MutexLock lock(&mu_);
  removed = RemoveLocked(handle, receipt.status());
  if (!receipt.ok()) (void)CountRefusedLocked(handle.client_id, receipt.status());
  return receipt;
}

absl::StatusOr<Receipt> Intake::CommitComplete(UploadHandle& handle, Upload& upload) {
  const absl::Duration begin = services_.clock.Monotonic();
  CompleteUpload complete{handle.client_id, handle.submission_id, handle.tag, upload, upload.Hash()};
  meter_.RecordHash(services_.clock.Monotonic() - begin);
  complete.number = handle.id_;
  if (journal_->IsActive()) {
    complete.chunks = [&](const CompleteUpload::TakeChunk& take) -> absl::Status {
      for (uint64_t sequence = 0; sequence < upload.next_sequence(); ++sequence) {
        ASSIGN_OR_RETURN(const std::string chunk, journal_->ReadChunk(handle.id_, sequence));
        const absl::string_view span = chunk;
        RETURN_IF_ERROR(take({&span, 1}));
      }
      return absl::OkStatus();
    };
  }
  TuplesPerTensor tuples;
  if (!upload.is_partial()) tuples = std::make_shared<const std::vector<uint64_t>>(upload.CountTuples());
  {
    MutexLock lock(&mu_);
    handle.hash_ = complete.hash;
  }
  absl::StatusOr<Receipt> receipt = target_.Commit(complete);
  MutexLock lock(&mu_);
  handle.is_submission_ = complete.is_kept;
  if (receipt.ok() && !receipt->duplicate && tuples != nullptr) latest_tuples_.swap(tuples);
  return receipt;
}

absl::StatusOr<Receipt> Intake::AnswerRepeat(const UploadHandle& handle, const std::optional<ContentHash>& hash) const {
  const std::optional<CommittedSubmission> found = target_.FindCommitted(handle.name());
  if (found.has_value() && found->hash == hash) return CountDuplicate(*found);
  RETURN_IF_ERROR(target_.CheckOpen());
  return NoUploadError(handle.name());
}

Receipt Intake::CountDuplicate(const CommittedSubmission& submission) const {
  Receipt receipt = submission.receipt;
  receipt.duplicate = true;
  meter_.CountDuplicate(receipt);
  return receipt;
}

}  // namespace sparseagg::service
