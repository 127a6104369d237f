#include "service/base/owners_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"

namespace sparseagg::service {

absl::Status SignalWithoutOwners(const std::string& path, int signal) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("--owners-file ", path));
  const auto watch = [file, path, signal] {
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    int failed;
    do {
      failed = fcntl(file, F_SETLKW, &whole) == 0 ? 0 : errno;
    } while (failed == EINTR);
    // Without the lock, nobody would ever stop the server.
    if (failed != 0) Log(LogLevel::kError, "no_owners_lock", {{"path", path}, {"reason", std::strerror(failed)}});
    Log(LogLevel::kInfo, "no_owners", {{"path", path}});
    kill(getpid(), signal);
  };
  return ToStatus([&] {
    std::thread(watch).detach();
    return absl::OkStatus();
  });
}

}  // namespace sparseagg::service
