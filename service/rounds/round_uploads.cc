// Round: uploads, from the first chunk to the last.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "host/base/status_macros.h"
#include "service/base/refusals.h"
#include "service/rounds/round.h"

namespace sparseagg::service {

absl::Status Round::CheckSubmissionLimitLocked() const {
  if (config_->submission_limit == 0 || committed_.size() < config_->submission_limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the round has the server's max_submissions ", config_->submission_limit, " already"));
}

absl::StatusOr<std::shared_ptr<UploadHandle>> Round::OpenStreamUpload(const std::string& client_id,
                                                                      const std::string& submission_id,
                                                                      UploadHandle::OnDiscard on_discard) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckRateLocked(client_id));
  return OpenUploadLocked({client_id, submission_id}, /*is_named=*/false, /*tag=*/"", std::move(on_discard));
}

absl::Status Round::CheckRateLocked(absl::string_view client_id) {
  if (tenant_.submissions.TryTake()) return absl::OkStatus();
  services_.metrics.CountTenantRefusal("submissions_per_second");
  return RefuseLocked(
      client_id, RetryLater(absl::StrCat("the tenant has begun the server's max_submissions_per_second_per_tenant ",
                                         tenant_.submissions.per_second(), " uploads in the last second")));
}

absl::StatusOr<std::shared_ptr<UploadHandle>> Round::OpenUploadLocked(UploadName name, bool is_named,
                                                                      const std::string& tag,
                                                                      UploadHandle::OnDiscard on_discard) {
  // A client with a committed submission may upload anything: the commit compares the content.
  if (committed_.Find(name.first) == nullptr) {
    if (!life_.is_open()) return RefuseLocked(name.first, NotOpenErrorLocked());
    if (absl::Status status = CheckSubmissionLimitLocked(); !status.ok()) {
      return RefuseLocked(name.first, std::move(status));
    }
  }
  if (!tenant_.uploads.TryAcquire()) {
    return RefuseLocked(name.first, OpenLimitError(tenant_.uploads, "uploads", "uploads", services_.metrics));
  }
  Permit permit(&tenant_.uploads);
  auto upload = std::make_shared<UploadHandle>(std::string(name.first), std::string(name.second), tag, UploadConfig(),
                                               &tenant_.budget, std::move(permit), journal_);
  {
    // Against the lock order, which is safe: nobody else has this handle yet.
    MutexLock upload_lock(&upload->mu_);
    upload->upload_.ExpectTuples(latest_tuples_);
  }
  upload->id_ = next_upload_++;
  upload->is_named_ = is_named;
  upload->last_chunk_at_ = services_.clock.Monotonic();
  upload->on_discard_ = std::move(on_discard);
  if (is_named) StartUploadTimerLocked(upload);
  uploads_.Insert(upload);
  return upload;
}

void Round::StartUploadTimerLocked(const std::shared_ptr<UploadHandle>& upload) {
  const std::weak_ptr<Round> weak_round = weak_from_this();
  const std::weak_ptr<UploadHandle> weak_upload = upload;
  upload->timer_ =
      services_.timer.Schedule(upload->last_chunk_at_ + services_.limits.upload_timeout, [weak_round, weak_upload] {
        const auto round = weak_round.lock();
        const auto timed = weak_upload.lock();
        if (round != nullptr && timed != nullptr) round->OnUploadTimer(timed);
      });
}

void Round::OnUploadTimer(const std::shared_ptr<UploadHandle>& upload) {
  MutexLock lock(&mu_);
  if (!uploads_.Contains(*upload) || upload->is_committing_) return;
  const absl::Duration timeout = services_.limits.upload_timeout;
  if (services_.clock.Monotonic() - upload->last_chunk_at_ < timeout) {
    StartUploadTimerLocked(upload);  // a chunk has come since
    return;
  }
  const absl::Status status = absl::DeadlineExceededError(
      absl::StrCat("the upload was discarded: no chunk came for upload_timeout ", absl::FormatDuration(timeout)));
  PostNotifyDiscarded();
  DiscardLocked(*upload, status);
}

void Round::DiscardLocked(UploadHandle& upload, absl::Status status) {
  if (!uploads_.Discard(upload, std::move(status))) return;
  // Two kinds are not counted as refused: uploads of a one-shot call (its round has no id), which end with the call,
  // and those that late chunks of a committed submission have opened again.
  upload.counts_as_refused_ =
      !config_->id.empty() && !HasUploadLocked({upload.client_id, upload.submission_id}, upload.tag);
  if (upload.counts_as_refused_) ++num_refused_;
}

void Round::PostNotifyDiscarded() {
  services_.pool.Post([self = shared_from_this()] { self->NotifyDiscarded(); });
}

void Round::NotifyDiscarded() {
  UploadTable::Map discarded;
  SubmissionTable::Map dropped;
  {
    MutexLock lock(&mu_);
    discarded = uploads_.TakeDiscarded();
    dropped = committed_.TakeDropped();
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

void Round::CountRefusedLocked(absl::string_view client_id, const absl::Status& status) {
  ++num_refused_;
  meter_.CountRefused(client_id, status);
  recent_refusals_.Add(client_id, status, services_.clock.WallTime());
}

absl::Status Round::RefuseLocked(absl::string_view client_id, absl::Status refusal) {
  CountRefusedLocked(client_id, refusal);
  return refusal;
}

void Round::Discard(UploadHandle& upload) {
  UploadTable::Map::node_type removed;  // freed after mu_ is released
  MutexLock lock(&mu_);
  removed = uploads_.Remove(upload, absl::CancelledError("the upload was discarded"));
}

void Round::Refuse(UploadHandle& upload, const absl::Status& status) {
  UploadTable::Map::node_type removed;  // freed after mu_ is released
  MutexLock lock(&mu_);
  removed = uploads_.Remove(upload, status);
  if (!removed.empty()) CountRefusedLocked(upload.client_id, status);
}

absl::Status Round::AppendChunk(UploadHandle& upload, const Chunk& chunk, const ContentHash* hash) {
  MutexLock one_at_a_time(&upload.mu_);
  Upload& staged = upload.upload_;
  const absl::Duration begin = services_.clock.Monotonic();
  const uint64_t expected = staged.next_sequence();
  bool is_named = false;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(upload.discard_status_);
    is_named = upload.is_named_;
    if (chunk.sequence == expected) upload.last_chunk_at_ = begin;  // repeats and gaps do not keep the upload
  }
  // By pointer: in a lambda the thread-safety analysis does not know that the upload's mutex is held.
  absl::Status status = ToStatus([&, appended = &staged]() -> absl::Status {
    if (chunk.sequence == expected && !IsRestoring()) {
      RETURN_IF_ERROR(CheckWeightHasEffect(config_->tensors, chunk.weight));
    }
    return appended->Append(chunk, hash);
  });
  const absl::Duration end = services_.clock.Monotonic();
  uint64_t bytes = 0;
  for (const ChunkSlice& slice : chunk.slices) bytes += slice.view.keys.size() + slice.view.values.size();
  meter_.RecordStage(RoundStage::kDecode, end - begin, absl::ZeroDuration(), bytes);
  const bool is_appended = staged.next_sequence() != expected;
  if (is_appended && journal_->IsActive()) {
    const UploadRecord opened{upload.client_id, upload.submission_id, upload.tag};
    upload.has_stored_chunks_ = true;
    status = ToStatus([&] {
      return journal_->Write(&Store::PutChunk, upload.id_, expected, chunk.message,
                             expected == 0 && is_named ? &opened : nullptr);
    });
  }
  if (is_appended && status.ok()) {
    MutexLock lock(&mu_);
    upload.last_chunk_at_ = end;
    upload.progress_.next_sequence = staged.next_sequence();
    upload.progress_.received_tuples = staged.num_tuples();
    upload.progress_.complete = staged.complete();
  } else if (!status.ok()) {
    // A gap ends a stream upload; a named upload goes on and waits for the chunk. So it does after a false repeat.
    const bool is_gap = !is_appended && (absl::IsFailedPrecondition(status) || absl::IsAlreadyExists(status));
    if (!is_gap || hash == nullptr) Refuse(upload, status);
  }
  return status;
}

UploadTable::Map::node_type Round::RemoveOtherTagLocked(UploadName name, const std::string& tag) {
  const std::shared_ptr<UploadHandle> upload = uploads_.FindNamed(name);
  if (upload == nullptr || upload->tag == tag || HasUploadLocked(name, tag)) return {};
  if (upload->is_committing_) {
    // The commit goes on without the name. Whichever upload is committed last is compared with the other.
    uploads_.RemoveName(*upload);
    return {};
  }
  const absl::Status status = UploadTable::ReplacedError(name);
  UploadTable::Map::node_type removed = uploads_.Remove(*upload, status);
  CountRefusedLocked(name.first, status);
  upload->permit_.Release();  // now: a thread that appends a chunk may keep the handle for a while
  return removed;
}

absl::StatusOr<UploadProgress> Round::PutChunk(const std::string& client_id, const std::string& submission_id,
                                               const Chunk& chunk, const std::string& tag) {
  const UploadName name(client_id, submission_id);
  const ContentHash hash = HashOfChunk(chunk);
  UploadTable::Map::node_type replaced;
  std::shared_ptr<UploadHandle> upload;
  {
    MutexLock lock(&mu_);
    if (chunk.sequence == 0) replaced = RemoveOtherTagLocked(name, tag);
    upload = uploads_.FindNamed(name);
    if ((upload == nullptr || upload->tag != tag) && HasUploadLocked(name, tag)) {
      // A late chunk of a committed submission is answered with its progress. Another chunk 0 where there is no upload
      // opens one, and the commit compares: it may begin the same content in other chunks.
      const CommittedSubmission committed = *FindCommittedLocked(name);
      const absl::Span<const ContentHash> hashes = committed.ChunkHashesOf(name.second, tag);
      if (!hashes.empty()) {
        absl::Status repeat = CheckRepeat(chunk, hash, hashes);
        if (repeat.ok()) return committed.progress();
        if (chunk.sequence > 0 || upload != nullptr) return repeat;
      }
    }
    if (upload != nullptr && upload->tag != tag) return UploadTable::ReplacedError(name);
    if (upload == nullptr && chunk.sequence > 0) {
      // Not counted as refused: if there was an upload, it was counted when the round discarded it.
      if (!life_.is_open()) return NotOpenErrorLocked();
      return absl::FailedPreconditionError(absl::StrCat(
          "chunk ", chunk.sequence, " came where chunk 0 is expected next: the round has no chunk of this upload, or ",
          "has discarded the upload because no chunk came for upload_timeout ",
          absl::FormatDuration(services_.limits.upload_timeout)));
    }
    if (upload == nullptr) {
      RETURN_IF_ERROR(CheckRateLocked(client_id));
      ASSIGN_OR_RETURN(upload, OpenUploadLocked(name, /*is_named=*/true, tag, nullptr));
    }
    if (upload->is_committing_) {
      // The upload is complete. Its mutex is held by the commit, so that the answer must not need the upload itself.
      RETURN_IF_ERROR(CheckRepeat(chunk, hash, upload->chunk_hashes_));
      return upload->progress_;
    }
  }
  replaced = {};  // its memory is for this upload
  RETURN_IF_ERROR(AppendChunk(*upload, chunk, &hash));
  MutexLock lock(&mu_);
  return upload->progress_;
}

void Round::RefuseNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                        const absl::Status& status) {
  UploadTable::Map::node_type removed;  // freed after mu_ is released
  MutexLock lock(&mu_);
  CountRefusedLocked(client_id, status);
  const std::shared_ptr<UploadHandle> upload = uploads_.FindNamed({client_id, submission_id});
  if (upload != nullptr && upload->tag == tag && !upload->is_committing_) removed = uploads_.Remove(*upload, status);
}

absl::StatusOr<UploadProgress> Round::GetProgress(const std::string& client_id, const std::string& submission_id,
                                                  const std::string& tag) {
  const UploadName name(client_id, submission_id);
  MutexLock lock(&mu_);
  if (HasUploadLocked(name, tag)) return FindCommittedLocked(name)->progress();
  const std::shared_ptr<UploadHandle> upload = uploads_.FindNamed(name);
  if (upload == nullptr) return UploadTable::NoUploadError(name);
  return upload->tag == tag ? upload->progress_ : UploadProgress{};
}

}  // namespace sparseagg::service
