// A library for LD_PRELOAD, under which the disk of one directory fails. It stands before the system calls that write
// files, of RocksDB and of the server. libfiu's library fails such calls of the whole process instead, also those that
// wake gRPC's threads.
//
// Environment: SPARSEAGG_FAILING_DISK, the directory. The file of that name with ".rule" behind it has the rule in
// force, and may be changed at any time:
//
//   sync       syncs fail with EIO
//   full       writes fail with ENOSPC
//   nearly     writes above 4 KiB write half, and then fail with ENOSPC
//   broken     writes fail with EIO
//   short      writes above 1000 bytes write 1000 bytes
//
// No file, or any other text: all is well.
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kShortBytes = 1000;
constexpr size_t kNearlyBytes = 4096;

enum class Rule { kNone, kSync, kFull, kNearly, kBroken, kShort };

// The rule for a descriptor.
Rule RuleOf(int fd) {
  static const char* const directory = std::getenv("SPARSEAGG_FAILING_DISK");
  if (directory == nullptr) return Rule::kNone;
  char link[64];
  char path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path));
  const size_t prefix = std::strlen(directory);
  if (length <= static_cast<ssize_t>(prefix) || std::strncmp(path, directory, prefix) != 0) return Rule::kNone;
  std::snprintf(path, sizeof(path), "%s.rule", directory);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return Rule::kNone;
  char text[8] = {};
  const ssize_t size = read(file, text, sizeof(text));
  close(file);
  if (size <= 0) return Rule::kNone;
  switch (text[0] == 's' ? text[1] : text[0]) {
    case 'y':
      return Rule::kSync;
    case 'h':
      return Rule::kShort;
    case 'f':
      return Rule::kFull;
    case 'n':
      return Rule::kNearly;
    case 'b':
      return Rule::kBroken;
    default:
      return Rule::kNone;
  }
}

// Returns: how many of `size` bytes a write takes; -1, with errno, if it fails.
ssize_t Allowed(int fd, size_t size) {
  switch (RuleOf(fd)) {
    case Rule::kFull:
      errno = ENOSPC;
      return -1;
    case Rule::kBroken:
      errno = EIO;
      return -1;
    case Rule::kNearly:
      if (size > kNearlyBytes) return static_cast<ssize_t>(size / 2);
      errno = ENOSPC;
      return -1;
    case Rule::kShort:
      return static_cast<ssize_t>(std::min(size, kShortBytes));
    default:
      return static_cast<ssize_t>(size);
  }
}

bool FailsSync(int fd) {
  if (RuleOf(fd) != Rule::kSync) return false;
  errno = EIO;
  return true;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) ssize_t write(int fd, const void* bytes, size_t size) {
  const ssize_t allowed = Allowed(fd, size);
  return allowed < 0 ? -1 : syscall(SYS_write, fd, bytes, allowed);
}

__attribute__((visibility("default"))) ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  const ssize_t allowed = Allowed(fd, size);
  return allowed < 0 ? -1 : syscall(SYS_pwrite64, fd, bytes, allowed, offset);
}

__attribute__((visibility("default"))) ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) {
  return pwrite(fd, bytes, size, offset);
}

__attribute__((visibility("default"))) ssize_t pwritev(int fd, const iovec* spans, int number, off_t offset) {
  size_t size = 0;
  for (int i = 0; i < number; ++i) size += spans[i].iov_len;
  const ssize_t allowed = Allowed(fd, size);
  if (allowed < 0) return -1;
  if (static_cast<size_t>(allowed) == size) return syscall(SYS_pwritev, fd, spans, number, offset, 0);
  // Some of the first span, which is a short write, too.
  return syscall(SYS_pwrite64, fd, spans[0].iov_base, std::min(spans[0].iov_len, static_cast<size_t>(allowed)), offset);
}

__attribute__((visibility("default"))) ssize_t pwritev64(int fd, const iovec* spans, int number, off64_t offset) {
  return pwritev(fd, spans, number, offset);
}

__attribute__((visibility("default"))) int fsync(int fd) {
  return FailsSync(fd) ? -1 : static_cast<int>(syscall(SYS_fsync, fd));
}

__attribute__((visibility("default"))) int fdatasync(int fd) {
  return FailsSync(fd) ? -1 : static_cast<int>(syscall(SYS_fdatasync, fd));
}

}  // extern "C"
