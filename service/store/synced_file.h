// Small files of a data directory, and the one that says how much of RocksDB's log is on the disk.
#ifndef SPARSEAGG_SERVICE_STORE_SYNCED_FILE_H_
#define SPARSEAGG_SERVICE_STORE_SYNCED_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"

namespace sparseagg::service {

// A lower bound of what a power failure cannot lose. RocksDB numbers writes, and its log files.
struct LogPosition {
  uint64_t sequence = 0;    // of the latest write
  uint64_t log_number = 0;  // of the latest log file with such a write; 0: tables have them all

  friend bool operator==(const LogPosition& a, const LogPosition& b) {
    return a.sequence == b.sequence && a.log_number == b.log_number;
  }
};

// Makes a change of a directory's entries, or of a file, outlive the machine. Errors: of the file system.
absl::Status SyncPath(const std::string& path);

// Writes a file as a whole: the disk has all of it, or what it had before. Until then the bytes are in `path`.new.
// Errors: of the file system.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

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
