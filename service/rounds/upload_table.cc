#include "service/rounds/upload_table.h"

#include "absl/strings/str_cat.h"

namespace sparseagg::service {

absl::Status UploadTable::ReplacedError(UploadName name) {
  return absl::FailedPreconditionError(
      absl::StrCat("another upload, with other content or other chunks, has replaced this upload of submission '",
                   name.second, "' of client '", name.first, "'"));
}

absl::Status UploadTable::NoUploadError(UploadName name) {
  return absl::NotFoundError(
      absl::StrCat("the round has no upload of submission '", name.second, "' of client '", name.first, "'"));
}

std::shared_ptr<UploadHandle> UploadTable::FindNamed(UploadName name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

UploadHandle* UploadTable::Next(uint64_t id) const {
  const auto next = uploads_.upper_bound(id);
  return next == uploads_.end() ? nullptr : next->second.get();
}

void UploadTable::Insert(const std::shared_ptr<UploadHandle>& upload) {
  // All allocations come before the upload is in both maps: an upload that is in one of them would keep its permit.
  decltype(by_name_) named;
  if (upload->is_named_) named.emplace(UploadName(upload->client_id, upload->submission_id), upload);
  uploads_.emplace(upload->id_, upload);
  by_name_.merge(named);
}

UploadTable::Map::node_type UploadTable::Remove(UploadHandle& upload, absl::Status status) {
  Map::node_type removed = uploads_.extract(upload.id_);
  if (removed.empty()) return removed;
  if (upload.is_named_) {
    by_name_.erase(UploadName(upload.client_id, upload.submission_id));
    timer_.Cancel(upload.timer_);
  }
  upload.discard_status_ = std::move(status);
  upload.is_removed_ = true;
  return removed;
}

void UploadTable::RemoveName(UploadHandle& upload) {
  by_name_.erase(UploadName(upload.client_id, upload.submission_id));
  upload.is_named_ = false;
  timer_.Cancel(upload.timer_);
}

bool UploadTable::Discard(UploadHandle& upload, absl::Status status) {
  Map::node_type removed = Remove(upload, std::move(status));
  if (removed.empty()) return false;
  discarded_.insert(std::move(removed));
  return true;
}

}  // namespace sparseagg::service
