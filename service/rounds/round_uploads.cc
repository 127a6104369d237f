// Round: uploads, from the first chunk to the last.
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "host/base/status_macros.h"
#include "service/base/to_status.h"
#include "service/rounds/round.h"

namespace sparseagg::service {

absl::Status Round::Replaced(const UploadName& name) {
  return absl::FailedPreconditionError(
      absl::StrCat("another upload, of other content or in other chunks, has taken the place of this one under ",
                   "submission '", name.second, "' of client '", name.first, "'"));
}

bool Round::IsRetryLocked(const UploadName& name, const std::string& tag) const {
  const auto found = committed_.find(name.first);
  if (found == committed_.end()) return false;
  const Committed& committed = found->second;
  return (committed.receipt.submission_id == name.second && committed.tag == tag) ||
         (committed.retry_id == name.second && committed.retry_tag == tag);
}

absl::StatusOr<std::shared_ptr<UploadHandle>> Round::OpenUpload(const std::string& client_id,
                                                                const std::string& submission_id,
                                                                UploadHandle::OnDiscard on_discard) {
  std::lock_guard lock(mu_);
  return OpenUploadLocked(client_id, submission_id, /*by_name=*/false, /*tag=*/"", std::move(on_discard));
}

absl::StatusOr<std::shared_ptr<UploadHandle>> Round::OpenUploadLocked(const std::string& client_id,
                                                                      const std::string& submission_id, bool by_name,
                                                                      const std::string& tag,
                                                                      UploadHandle::OnDiscard on_discard) {
  // Of a client with a committed submission anything is staged, so that its content can be compared.
  if (!committed_.contains(client_id)) {
    if (now_.state != RoundState::kOpen) return RefuseLocked(NotOpenLocked());
    if (config_->submission_limit != 0 && committed_.size() >= config_->submission_limit) {
      return RefuseLocked(absl::ResourceExhaustedError(
          absl::StrCat("the round has the server's max_submissions ", config_->submission_limit, " already")));
    }
  }
  if (!server_.uploads.TryAcquire()) {
    return RefuseLocked(absl::ResourceExhaustedError(
        absl::StrCat("max_uploads ", server_.uploads.limit(), " uploads are open already")));
  }
  auto upload =
      std::make_shared<UploadHandle>(client_id, submission_id, tag, config_, server_, Permit(&server_.uploads));
  upload->upload_.Expect(latest_tuples_);
  upload->id_ = next_id_++;
  upload->by_name_ = by_name;
  upload->last_chunk_ = server_.clock.Monotonic();
  upload->on_discard_ = std::move(on_discard);
  uploads_.emplace(upload->id_, upload);
  if (by_name) {
    ScheduleUploadTimerLocked(upload);
    uploads_by_name_.emplace(UploadName(client_id, submission_id), upload->id_);
  }
  return upload;
}

void Round::ScheduleUploadTimerLocked(const std::shared_ptr<UploadHandle>& upload) {
  const std::weak_ptr<Round> weak_round = weak_from_this();
  const std::weak_ptr<UploadHandle> weak_upload = upload;
  upload->timer_ =
      server_.timer.Schedule(upload->last_chunk_ + server_.limits.upload_timeout, [weak_round, weak_upload] {
        const auto round = weak_round.lock();
        const auto timed = weak_upload.lock();
        if (round != nullptr && timed != nullptr) round->OnUploadTimer(timed);
      });
}

void Round::OnUploadTimer(const std::shared_ptr<UploadHandle>& upload) {
  std::lock_guard lock(mu_);
  if (!upload->verdict_.ok() || !uploads_.contains(upload->id_) || upload->committing_) return;
  const absl::Duration timeout = server_.limits.upload_timeout;
  if (server_.clock.Monotonic() - upload->last_chunk_ < timeout) {
    ScheduleUploadTimerLocked(upload);  // a chunk has come since
    return;
  }
  DiscardLocked(*upload,
                absl::DeadlineExceededError(absl::StrCat("the upload was discarded: no chunk came for upload_timeout ",
                                                         absl::FormatDuration(timeout))));
}

std::shared_ptr<UploadHandle> Round::RemoveLocked(UploadHandle& upload, absl::Status verdict) {
  const auto found = uploads_.find(upload.id_);
  if (found == uploads_.end()) return nullptr;
  std::shared_ptr<UploadHandle> removed = std::move(found->second);
  uploads_.erase(found);
  if (upload.by_name_) {
    uploads_by_name_.erase(UploadName(upload.client_id, upload.submission_id));
    server_.timer.Cancel(upload.timer_);
  }
  upload.verdict_ = std::move(verdict);
  return removed;
}

void Round::DiscardLocked(UploadHandle& upload, absl::Status verdict) {
  std::shared_ptr<UploadHandle> removed = RemoveLocked(upload, verdict);
  if (removed == nullptr) return;
  // A one-shot call's uploads end with the call. What a chunk 0 that came late has opened again is committed.
  const bool is_lost = !config_->id.empty() && !IsRetryLocked({upload.client_id, upload.submission_id}, upload.tag);
  if (is_lost) CountRefusedLocked(verdict);
  // Its memory is freed on the pool, too.
  server_.pool.Post([removed = std::move(removed), verdict = std::move(verdict)] {
    if (removed->on_discard_ != nullptr) removed->on_discard_(verdict);
  });
}

void Round::CountRefusedLocked(const absl::Status& status) {
  ++now_.num_refused;
  server_.metrics.CountRefused(status);
}

absl::Status Round::RefuseLocked(absl::Status refusal) {
  CountRefusedLocked(refusal);
  return refusal;
}

void Round::NoteMessage(uint64_t bytes, absl::Duration waited, absl::Duration queued, absl::Duration parsing) {
  stages_.Add(RoundStage::kReceive, absl::ZeroDuration(), waited, bytes);
  server_.metrics.ObserveStage(RoundStage::kReceive, waited);
  stages_.Add(RoundStage::kDecode, parsing, queued, 0);
}

void Round::Forget(UploadHandle& upload) {
  std::shared_ptr<UploadHandle> removed;  // freed after the lock
  std::lock_guard lock(mu_);
  removed = RemoveLocked(upload, absl::CancelledError("the upload was discarded"));
}

void Round::Refuse(UploadHandle& upload, const absl::Status& status) {
  std::shared_ptr<UploadHandle> removed;  // freed after the lock
  std::lock_guard lock(mu_);
  removed = RemoveLocked(upload, status);
  if (removed != nullptr) CountRefusedLocked(status);
}

absl::Status Round::Append(UploadHandle& upload, const Chunk& chunk, Repeats repeats) {
  std::lock_guard one_at_a_time(upload.mu_);
  const absl::Duration begin = server_.clock.Monotonic();
  const uint64_t expected = upload.upload_.next_sequence();
  {
    std::lock_guard lock(mu_);
    RETURN_IF_ERROR(upload.verdict_);
    if (chunk.sequence == expected) upload.last_chunk_ = begin;  // repeats and gaps do not keep it
  }
  absl::Status status = ToStatus([&] { return upload.upload_.Append(chunk, repeats); });
  const absl::Duration end = server_.clock.Monotonic();
  uint64_t bytes = 0;
  for (const ChunkSlice& slice : chunk.slices) bytes += slice.view.keys.size() + slice.view.values.size();
  Note(RoundStage::kDecode, end - begin, absl::ZeroDuration(), bytes);
  if (upload.upload_.next_sequence() != expected) {
    std::lock_guard lock(mu_);
    upload.last_chunk_ = end;
    upload.progress_.next_sequence = upload.upload_.next_sequence();
    upload.progress_.received_tuples = upload.upload_.num_tuples();
    upload.progress_.complete = upload.upload_.complete();
  } else if (!status.ok() && (repeats == Repeats::kRefuse || !absl::IsFailedPrecondition(status))) {
    Refuse(upload, status);
  }
  return status;
}

std::shared_ptr<UploadHandle> Round::FindNamedLocked(const UploadName& name) const {
  const auto found = uploads_by_name_.find(name);
  return found == uploads_by_name_.end() ? nullptr : uploads_.at(found->second);
}

// Discards the upload of this name if it has another tag, unless this one is committed. Returns it, to be freed after
// the lock.
std::shared_ptr<UploadHandle> Round::MakeWayLocked(const UploadName& name, const std::string& tag) {
  const std::shared_ptr<UploadHandle> upload = FindNamedLocked(name);
  if (upload == nullptr || upload->tag == tag || IsRetryLocked(name, tag)) return nullptr;
  if (upload->committing_) {
    // Its commit goes on without the name. Whichever of the two is committed last is compared with the other.
    uploads_by_name_.erase(name);
    upload->by_name_ = false;
    server_.timer.Cancel(upload->timer_);
    return nullptr;
  }
  const absl::Status verdict = Replaced(name);
  std::shared_ptr<UploadHandle> removed = RemoveLocked(*upload, verdict);
  CountRefusedLocked(verdict);
  upload->permit_.Release();  // also if one of its chunks is still being taken
  return removed;
}

absl::StatusOr<UploadProgress> Round::PutChunk(const std::string& client_id, const std::string& submission_id,
                                               const Chunk& chunk, const std::string& tag) {
  const UploadName name(client_id, submission_id);
  std::shared_ptr<UploadHandle> replaced;  // freed after the lock
  std::shared_ptr<UploadHandle> upload;
  {
    std::lock_guard lock(mu_);
    if (chunk.sequence == 0) replaced = MakeWayLocked(name, tag);
    upload = FindNamedLocked(name);
    if (upload == nullptr || upload->tag != tag) {
      // A chunk that comes late, of what is committed. Without a tag only the commit can tell whether a chunk 0 is of
      // that or begins something else.
      const bool is_known = chunk.sequence > 0 || upload != nullptr || !tag.empty();
      if (is_known && IsRetryLocked(name, tag)) return CommittedProgressLocked(name);
    }
    if (upload != nullptr && upload->tag != tag) return Replaced(name);
    if (upload == nullptr && chunk.sequence > 0) {
      // What its upload was refused for was counted when the round let go of it.
      if (now_.state != RoundState::kOpen) return NotOpenLocked();
      return absl::FailedPreconditionError(
          absl::StrCat("chunk ", chunk.sequence,
                       " came where chunk 0 is expected next: nothing of this upload is here; one that gets no chunk ",
                       "for upload_timeout ", absl::FormatDuration(server_.limits.upload_timeout), " is discarded"));
    }
    if (upload == nullptr) {
      ASSIGN_OR_RETURN(upload, OpenUploadLocked(client_id, submission_id, /*by_name=*/true, tag, nullptr));
    }
    if (upload->committing_) {
      // All of it is here, so that there is nothing to wait for.
      if (chunk.sequence < upload->progress_.next_sequence) return upload->progress_;
      return ChunkAfterLast(chunk.sequence, upload->progress_.next_sequence - 1);
    }
  }
  replaced.reset();  // its memory is for this one
  RETURN_IF_ERROR(Append(*upload, chunk, Repeats::kIgnore));
  std::lock_guard lock(mu_);
  return upload->progress_;
}

void Round::RefuseNamed(const std::string& client_id, const std::string& submission_id, const std::string& tag,
                        const absl::Status& status) {
  std::shared_ptr<UploadHandle> removed;  // freed after the lock
  std::lock_guard lock(mu_);
  CountRefusedLocked(status);
  const std::shared_ptr<UploadHandle> upload = FindNamedLocked(UploadName(client_id, submission_id));
  if (upload != nullptr && upload->tag == tag && !upload->committing_) removed = RemoveLocked(*upload, status);
}

UploadProgress Round::CommittedProgressLocked(const UploadName& name) const {
  const Committed& committed = committed_.at(name.first);
  UploadProgress progress;
  progress.next_sequence = committed.num_chunks;
  progress.received_tuples = committed.receipt.num_tuples;
  progress.complete = true;
  progress.committed = true;
  return progress;
}

absl::StatusOr<UploadProgress> Round::GetProgress(const std::string& client_id, const std::string& submission_id,
                                                  const std::string& tag) {
  const UploadName name(client_id, submission_id);
  std::lock_guard lock(mu_);
  if (IsRetryLocked(name, tag)) return CommittedProgressLocked(name);
  const std::shared_ptr<UploadHandle> upload = FindNamedLocked(name);
  if (upload == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("nothing of submission '", submission_id, "' of client '", client_id, "' is here"));
  }
  return upload->tag == tag ? upload->progress_ : UploadProgress{};
}

}  // namespace sparseagg::service
