// The file SYNCED of a data directory.
#ifndef SPARSEAGG_SERVICE_STORE_SYNCED_FILE_H_
#define SPARSEAGG_SERVICE_STORE_SYNCED_FILE_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "host/base/mutex.h"
#include "service/store/log_position.h"

namespace sparseagg::service {

// Keeps what of the database's log is on the disk, so that the next start sees whether a part of it is gone. Nothing
// syncs the file itself: after the end of the machine it may be some seconds old, and is never ahead of the log.
//
// Owned by Store. Thread-safe.
class SyncedFile {
 public:
  // Returns: what the file says; nullopt: there is none. An empty file, which nobody but an operator makes, says that
  // nothing is known to be on the disk. Errors: DATA_LOSS: anything else is in the file. Of the file system.
  static absl::StatusOr<std::optional<LogPosition>> Read(const std::string& path);
  // Makes the file, if it is missing. Errors: of the file system.
  static absl::StatusOr<std::unique_ptr<SyncedFile>> Open(const std::string& path);
  ~SyncedFile();
  SyncedFile(const SyncedFile&) = delete;
  SyncedFile& operator=(const SyncedFile&) = delete;

  // Requires: `position` is on the disk. An earlier one than the file has changes nothing. An error of the file system
  // does no harm: the file says less than it could.
  void Write(const LogPosition& position);

 private:
  explicit SyncedFile(int fd) : fd_(fd) {}

  const int fd_;
  Mutex mu_;
  LogPosition written_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_SYNCED_FILE_H_
