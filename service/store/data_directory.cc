#include "service/store/data_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"
#include "service/base/read_file.h"
#include "service/store/synced_file.h"

namespace sparseagg::service {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kFormatPrefix = "sparseagg data, format ";

absl::Status ErrnoStatus(int error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
}

absl::Status MakeNormalDirectory(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return absl::OkStatus();
  const fs::path parent = path.parent_path();
  if (!parent.empty() && parent != path) RETURN_IF_ERROR(MakeNormalDirectory(parent));
  fs::create_directory(path, error);
  if (error) return ErrnoStatus(error.value(), "cannot make the directory", path.string());
  fs::permissions(path, fs::perms::owner_all, error);
  return SyncPath(parent.empty() ? "." : parent.string());
}

// Errors: FAILED_PRECONDITION: the directory's FORMAT does not say kDataFormat.
absl::Status CheckFormat(const std::string& directory) {
  const std::string path = directory + "/FORMAT";
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::string_view found = absl::StripSuffix(text, "\n");
  const std::string quoted = absl::StrCat(path, " says '", found.substr(0, 100), "'");
  int version = 0;
  if (!absl::ConsumePrefix(&found, kFormatPrefix) || !absl::SimpleAtoi(found, &version)) {
    return absl::FailedPreconditionError(
        absl::StrCat(quoted, ", expected '", kFormatPrefix, kDataFormat, "': this is no data directory of sparseagg"));
  }
  if (version == kDataFormat) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(quoted, ", expected format ", kDataFormat,
                   version > kDataFormat ? ": a newer server has written it; use that version" : ""));
}

bool IsOurs(absl::string_view name) {
  // A file system's own directory is at the root of a volume that is mounted for the data.
  return name == "FORMAT" || name == "FORMAT.new" || name == "SYNCED" || name == "SYNCED.new" || name == "LOCK" ||
         name == "db" || name == "chunks" || name == "lost+found";
}

// Checks all names in the directory. Returns: whether there is a FORMAT.
absl::StatusOr<bool> HasFormat(const std::string& path) {
  std::error_code error;
  bool has_format = false;
  bool has_data = false;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!IsOurs(name)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the data directory ", path, " has '", name,
          "', expected an empty directory or one that a server has made (FORMAT, SYNCED, LOCK, db, chunks)"));
    }
    has_format = has_format || name == "FORMAT";
    has_data = has_data || name == "db" || name == "chunks";
  }
  if (error) return ErrnoStatus(error.value(), "cannot list the data directory", path);
  if (has_data && !has_format) {
    return absl::FailedPreconditionError(
        absl::StrCat("the data directory ", path, " has data but no 'FORMAT', expected both: it was not copied whole"));
  }
  return has_format;
}

}  // namespace

absl::Status MakeDirectory(const std::string& path) { return MakeNormalDirectory(fs::path(path).lexically_normal()); }

absl::Status WithoutPath(const absl::Status& status, const std::string& directory) {
  return absl::Status(status.code(), absl::StrReplaceAll(status.message(), {{directory + "/", ""}}));
}

absl::Status WriteFormat(const std::string& directory) {
  return ReplaceFile(absl::StrCat(directory, "/FORMAT"), absl::StrCat(kFormatPrefix, kDataFormat, "\n"));
}

absl::StatusOr<std::unique_ptr<DataDirectory>> DataDirectory::Open(const std::string& given) {
  // As RocksDB names it: without a slash at the end.
  const std::string path = (fs::path(given).lexically_normal() / "").parent_path().string();
  RETURN_IF_ERROR(MakeDirectory(path));
  RETURN_IF_ERROR(HasFormat(path).status());  // before the lock file is made in a directory of others
  const std::string lock_path = path + "/LOCK";
  const int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return ErrnoStatus(errno, "cannot open", lock_path);
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    close(lock);
    if (error != EWOULDBLOCK) return ErrnoStatus(error, "cannot lock", lock_path);
    return absl::UnavailableError(absl::StrCat("the data directory ", path, " is in use: another server has locked ",
                                               lock_path, ", expected no other server"));
  }
  auto directory = std::unique_ptr<DataDirectory>(new DataDirectory(path, lock));
  ASSIGN_OR_RETURN(const bool has_format, HasFormat(path));
  if (!has_format) RETURN_IF_ERROR(WriteFormat(path));
  RETURN_IF_ERROR(CheckFormat(path));
  return directory;
}

DataDirectory::~DataDirectory() { close(lock_); }

DiskSpace MeasureSpace(const std::string& directory) {
  DiskSpace space;
  std::error_code error;
  for (fs::recursive_directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    struct stat status {};
    // Blocks, since files have holes; and a file may be removed meanwhile.
    if (lstat(it->path().c_str(), &status) == 0) space.used_bytes += static_cast<uint64_t>(status.st_blocks) * 512;
  }
  struct statvfs volume {};
  if (statvfs(directory.c_str(), &volume) == 0) space.available_bytes = uint64_t{volume.f_bavail} * volume.f_frsize;
  return space;
}

}  // namespace sparseagg::service
