#include "service/store/synced_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "host/base/content_hash.h"
#include "host/base/status_macros.h"
#include "service/base/read_file.h"

namespace sparseagg::service {
namespace {

absl::Status FileError(int error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
}

}  // namespace

absl::Status SyncPath(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError(errno, "cannot open", path);
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return error == 0 ? absl::OkStatus() : FileError(error, "cannot sync", path);
}

absl::Status ReplaceFile(const std::string& path, absl::string_view bytes) {
  const std::string unfinished = absl::StrCat(path, ".new");
  const int fd = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return FileError(errno, "cannot make", unfinished);
  const ssize_t written = write(fd, bytes.data(), bytes.size());
  int error = written == static_cast<ssize_t>(bytes.size()) ? 0 : (written < 0 ? errno : ENOSPC);
  if (error == 0 && fsync(fd) != 0) error = errno;
  close(fd);
  if (error != 0) return FileError(error, "cannot write", unfinished);
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) return FileError(errno, "cannot make", path);
  return SyncPath(std::filesystem::path(path).parent_path().string());
}

namespace {

// One line, always of the same size and far shorter than a sector, so that the disk has the old one or the new one.
std::string Encode(const LogPosition& position) {
  const std::string text = absl::StrFormat("sequence %020d log %020d", position.sequence, position.log_number);
  return absl::StrFormat("%s check %016x\n", text, HashOf(text.data(), text.size()).first);
}

uint64_t NumberAt(absl::string_view text, size_t at) {
  uint64_t number = 0;
  return text.size() >= at + 20 && absl::SimpleAtoi(text.substr(at, 20), &number) ? number : 0;
}

}  // namespace

absl::StatusOr<std::optional<LogPosition>> SyncedFile::Read(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const LogPosition position{NumberAt(text, 9), NumberAt(text, 34)};
  if (text.empty() || text == Encode(position)) return position;
  return absl::DataLossError(
      absl::StrCat(path, " has ", text.size(), " bytes, expected a line as '", Encode(position), "': it is damaged"));
}

absl::StatusOr<std::unique_ptr<SyncedFile>> SyncedFile::Open(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) RETURN_IF_ERROR(ReplaceFile(path, Encode({})));
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  return std::unique_ptr<SyncedFile>(new SyncedFile(fd));
}

SyncedFile::~SyncedFile() { close(fd_); }

void SyncedFile::Write(const LogPosition& position) {
  MutexLock lock(&mu_);
  if (position.sequence < written_.sequence || position == written_) return;
  written_ = position;
  const std::string text = Encode(position);
  (void)!pwrite(fd_, text.data(), text.size(), 0);
}

}  // namespace sparseagg::service
