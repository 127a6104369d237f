// The directory of a server's data: its format, and who uses it.
#ifndef SPARSEAGG_SERVICE_STORE_DATA_DIRECTORY_H_
#define SPARSEAGG_SERVICE_STORE_DATA_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparseagg::service {

// The version of the layout that docs/durability.md describes: the only one that this server reads and writes.
inline constexpr int kDataFormat = 1;

// Bytes of disk space.
struct DiskSpace {
  uint64_t used_bytes = 0;       // by all files of a directory
  uint64_t available_bytes = 0;  // in its file system, to this process
};

// Returns: the space that a directory takes. Cost: a system call for each file, of which there are tens, and one for
// each round with large chunks.
DiskSpace MeasureSpace(const std::string& directory);

// Makes the directory with all above it, each synced into the one above: a directory that only the page cache knows is
// lost with the power, and all that it holds. Errors: of the file system.
absl::Status MakeDirectory(const std::string& path);

// Makes `directory`, which has all else of a data directory, one. Errors: of the file system.
absl::Status WriteFormat(const std::string& directory);

// Returns: the error for a client, who is to know no path of the server: paths below `directory` begin there.
absl::Status WithoutPath(const absl::Status& status, const std::string& directory);

// A directory that this process may use alone, until the object is destroyed:
//
//   FORMAT   one line, "sparseagg data, format 1"
//   SYNCED   one line, how much of the database's log is on the disk
//   LOCK     locked (flock) by the server that uses the directory
//   db/      the files of RocksDB
//   chunks/  large chunks
class DataDirectory {
 public:
  // Makes the directory, if it is missing or empty, and locks it.
  // Errors, which name path, what was found and what was expected: FAILED_PRECONDITION: the directory has another
  // format, or files that are not the server's. UNAVAILABLE: another server uses it. Otherwise of the file system.
  static absl::StatusOr<std::unique_ptr<DataDirectory>> Open(const std::string& path);
  ~DataDirectory();
  DataDirectory(const DataDirectory&) = delete;
  DataDirectory& operator=(const DataDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string db_path() const { return path_ + "/db"; }
  std::string chunks_path() const { return path_ + "/chunks"; }
  std::string synced_path() const { return path_ + "/SYNCED"; }

 private:
  DataDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  const std::string path_;
  const int lock_;  // descriptor
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_DATA_DIRECTORY_H_
