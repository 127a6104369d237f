#include "service/store/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"

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

}  // namespace sparseagg::service
