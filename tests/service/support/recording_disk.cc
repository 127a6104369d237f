// A library for LD_PRELOAD that records what a process has synced, so that a test can take away the rest, as the end of
// a machine does. It stands before the system calls that sync and rename files, of RocksDB and of the server.
//
// Environment: SPARSEAGG_RECORDED_DISK, a directory. The file of that name with ".synced" behind it gets a line for
// each sync that has succeeded, and for each rename, of a file below it:
//
//   sync SIZE PATH        the file had SIZE bytes when the sync began
//   rename PATH TAB PATH
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char* Directory() {
  static const char* const directory = std::getenv("SPARSEAGG_RECORDED_DISK");
  return directory;
}

bool IsBelow(const char* path) {
  return Directory() != nullptr && std::strncmp(path, Directory(), std::strlen(Directory())) == 0;
}

// Whole or not at all, if the process is killed.
void Record(const char* line, int size) {
  char path[PATH_MAX];
  std::snprintf(path, sizeof(path), "%s.synced", Directory());
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0 || syscall(SYS_write, file, line, size) != size) std::abort();
  close(file);
}

int Sync(long number, int fd) {
  char link[64];
  char path[PATH_MAX] = {};
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  struct stat status {};
  const bool is_recorded = Directory() != nullptr && readlink(link, path, sizeof(path) - 1) > 0 && IsBelow(path) &&
                           fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const int result = static_cast<int>(syscall(number, fd));
  if (result != 0 || !is_recorded) return result;
  char line[PATH_MAX + 64];
  Record(line, std::snprintf(line, sizeof(line), "sync %lld %s\n", static_cast<long long>(status.st_size), path));
  return 0;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int fsync(int fd) { return Sync(SYS_fsync, fd); }

__attribute__((visibility("default"))) int fdatasync(int fd) { return Sync(SYS_fdatasync, fd); }

__attribute__((visibility("default"))) int rename(const char* from, const char* to) {
  const int result = static_cast<int>(syscall(SYS_rename, from, to));
  if (result != 0 || !IsBelow(to)) return result;
  char line[2 * PATH_MAX + 64];
  Record(line, std::snprintf(line, sizeof(line), "rename %s\t%s\n", from, to));
  return 0;
}

}  // extern "C"
