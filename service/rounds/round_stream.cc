// Round: the intake of a stream, and its versions.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/rounds/round.h"

namespace sparseagg::service {

std::shared_ptr<StreamCommits> Round::Commits() const {
  return config_->IsIntake() ? config_->stream->commits.lock() : nullptr;
}

std::optional<CommittedSubmission> Round::FindCommittedLocked(UploadName name) const {
  if (config_->IsIntake()) {
    const std::shared_ptr<StreamCommits> commits = Commits();
    return commits == nullptr ? std::nullopt : commits->Find(name);
  }
  const CommittedSubmission* const found = committed_.Find(name.first);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

bool Round::HasUploadLocked(UploadName name, absl::string_view tag) const {
  if (!config_->IsIntake()) return committed_.HasUpload(name, tag);
  const std::optional<CommittedSubmission> found = FindCommittedLocked(name);
  return found.has_value() && found->tag == tag;
}

absl::StatusOr<Receipt> Round::SubmitToStream(const std::string& client_id, const std::string& submission_id,
                                              const Chunk& chunk) {
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckRateLocked(client_id));
  }
  const std::string tag;  // empty: only named uploads have one
  absl::StatusOr<Receipt> receipt = ToStatus([&]() -> absl::StatusOr<Receipt> {
    const std::shared_ptr<StreamCommits> commits = Commits();
    if (commits == nullptr) return absl::NotFoundError(absl::StrCat("no stream '", config_->id, "'"));
    RETURN_IF_ERROR(CheckWeightHasEffect(config_->tensors, chunk.weight));
    Upload upload(config_, &tenant_.budget);
    RETURN_IF_ERROR(upload.Append(chunk));
    StreamUpload complete{client_id, submission_id, tag, upload, upload.Hash(), nullptr};
    if (journal_->IsActive()) {
      complete.chunks = [&chunk](const StreamUpload::TakeChunk& take) { return take(chunk.message); };
    }
    return commits->Commit(complete);
  });
  if (receipt.ok()) return receipt;
  MutexLock lock(&mu_);
  return RefuseLocked(client_id, receipt.status());
}

absl::Status Round::BeginStreamCommit() {
  MutexLock lock(&mu_);
  if (!life_.is_open()) return NotOpenErrorLocked();
  life_.BeginCommit();
  return absl::OkStatus();
}

absl::StatusOr<Receipt> Round::AddStreamCommit(const StreamUpload& upload, const std::string& key,
                                               const StreamPlace& place) {
  absl::StatusOr<Receipt> receipt = ToStatus([&] { return AddFromStream(upload, key, place); });
  MutexLock lock(&mu_);
  if (life_.EndCommit()) PostFinish();
  return receipt;
}

absl::StatusOr<Receipt> Round::AddFromStream(const StreamUpload& upload, const std::string& key,
                                             const StreamPlace& place) {
  UploadHandle handle(key, upload.submission_id, upload.tag, UploadConfig(), &tenant_.budget, Permit(), journal_);
  {
    MutexLock lock(&mu_);
    handle.id_ = next_upload_++;
    handle.hash_ = upload.hash;
    handle.stream_ = place;
    handle.client_of_key_ = upload.client_id;
    handle.is_removed_ = true;  // it is in no table; so ~UploadHandle deletes the chunks if no submission has them
  }
  if (upload.chunks != nullptr && journal_->IsActive()) {
    handle.has_stored_chunks_ = true;
    uint64_t sequence = 0;
    RETURN_IF_ERROR(upload.chunks([&](absl::Span<const absl::string_view> message) {
      return journal_->Write(&Store::PutChunk, handle.id_, sequence++, message,
                             static_cast<const UploadRecord*>(nullptr));
    }));
  }
  return PrepareAndAdd(handle, upload.content, upload.hash);
}

void Round::CloseVersion() {
  MutexLock lock(&mu_);
  if (life_.is_closed()) return;
  const absl::Status closed = CloseLocked();
  if (!closed.ok()) RetryCloseLocked(closed);
}

std::optional<CommittedSubmission> Round::FindCommitted(const std::string& key) const {
  MutexLock lock(&mu_);
  const CommittedSubmission* const found = committed_.Find(key);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

}  // namespace sparseagg::service
