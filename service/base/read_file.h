// Reading of small files, such as those of credentials.
#ifndef SPARSEAGG_SERVICE_BASE_READ_FILE_H_
#define SPARSEAGG_SERVICE_BASE_READ_FILE_H_

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>

#include "absl/status/statusor.h"

namespace sparseagg::service {

// Returns: the bytes of a regular file. Errors: of the file system; RESOURCE_EXHAUSTED above 16 MiB. The message has
// the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Returns: the bytes of a file with a secret. Logs a warning if its mode lets others read it.
// Errors: as of ReadFile. INVALID_ARGUMENT: its mode lets others write it; or it has less than `min_bytes`, or one byte
// again and again, as a placeholder has.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path, size_t min_bytes = 0);

// Tells whether a file has changed, by its time, size, inode and device. Follows links, so that a link set to another
// file, as Kubernetes does it, is a change. Not thread-safe.
class FileVersion {
 public:
  explicit FileVersion(std::string path) : path_(std::move(path)) {}

  // Returns: whether the file is another one than at the last call; true at the first if it exists.
  bool HasChanged();

 private:
  const std::string path_;
  struct stat last_ {};
};

// How the reloads of a file of credentials went. Thread-safe.
struct ReloadState {
  std::atomic<uint64_t> num_failed = 0;  // since the latest one that succeeded; 0: what the file has is in use
  std::atomic<uint64_t> read_at = 0;     // Unix time in seconds of the latest one that succeeded

  void Record(bool succeeded) {
    num_failed = succeeded ? 0 : num_failed + 1;
    if (succeeded) read_at = static_cast<uint64_t>(std::time(nullptr));
  }
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_READ_FILE_H_
