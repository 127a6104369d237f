// UploadTable: the uploads of a round that are neither committed nor discarded.
#ifndef SPARSEAGG_SERVICE_ROUNDS_UPLOAD_TABLE_H_
#define SPARSEAGG_SERVICE_ROUNDS_UPLOAD_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "service/base/clock.h"
#include "service/rounds/upload_handle.h"

namespace sparseagg::service {

// Finds uploads, named ones also by their ids. Not thread-safe: Round guards it, and the members of the handles that it
// reads and sets.
class UploadTable {
 public:
  using Map = std::map<uint64_t, std::shared_ptr<UploadHandle>>;  // by UploadHandle::id_

  // `timer`: borrowed; it has the timeouts of named uploads.
  explicit UploadTable(Timer& timer) : timer_(timer) {}

  // FAILED_PRECONDITION: an upload with another tag has taken the name. NOT_FOUND: no upload has it.
  static absl::Status ReplacedError(UploadName name);
  static absl::Status NoUploadError(UploadName name);

  size_t size() const { return uploads_.size(); }
  bool Contains(const UploadHandle& upload) const { return uploads_.contains(upload.id_); }
  // Returns: the upload, or null.
  std::shared_ptr<UploadHandle> FindNamed(UploadName name) const;
  // Returns: the upload with the smallest id above `id`, or null.
  UploadHandle* Next(uint64_t id) const;

  // Adds the upload; if it is named, its name must be free. If an allocation fails, the table is as it was.
  void Insert(const std::shared_ptr<UploadHandle>& upload);
  // Removes the upload, if it is still there, with `status` as the reason. Allocates nothing. Returns: the map's entry,
  // to be freed after the round's lock; empty if the upload had ended.
  Map::node_type Remove(UploadHandle& upload, absl::Status status);
  // Makes the name of a named upload free. The upload goes on.
  void RemoveName(UploadHandle& upload);
  // As Remove, but keeps the upload for TakeDiscarded. Returns: false if the upload had ended.
  bool Discard(UploadHandle& upload, absl::Status status);
  Map TakeDiscarded() { return std::exchange(discarded_, {}); }

 private:
  Timer& timer_;
  Map uploads_;
  Map discarded_;
  std::map<UploadName, std::shared_ptr<UploadHandle>> by_name_;  // the keys are views of the ids in the handles
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_UPLOAD_TABLE_H_
