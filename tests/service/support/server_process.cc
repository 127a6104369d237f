#include "tests/service/support/server_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "service/net/address.h"

namespace sparseagg::service {

ServerProcess::ServerProcess(std::vector<std::string> args, std::vector<std::string> environment, int log_fd,
                             std::vector<std::string> launcher) {
  if (std::find(args.begin(), args.end(), "--grpc-address") == args.end()) {
    args.insert(args.begin(), {"--grpc-address", "127.0.0.1:0"});
  }
  if (std::find(args.begin(), args.end(), "--metrics-address") == args.end()) {
    args.insert(args.begin(), {"--metrics-address", ""});
  }
  if (std::find(args.begin(), args.end(), "--http-address") == args.end()) {
    args.insert(args.begin(), {"--http-address", ""});
  }
  std::vector<std::string> argv = std::move(launcher);
  argv.emplace_back(SPARSEAGG_SERVER_BINARY);
  argv.insert(argv.end(), args.begin(), args.end());

  const OwnedFd log(open(LogPath().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  int ends[2] = {-1, -1};
  if (log.get() < 0 || pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), LogPath());
  const OwnedFd out(ends[0]);
  {
    const OwnedFd write_end(ends[1]);
    process_.emplace(std::move(argv), std::move(environment), write_end.get(), log_fd < 0 ? log.get() : log_fd);
  }
  std::string line;
  for (char c; read(out.get(), &c, 1) == 1 && c != '\n';) line += c;
  absl::string_view address = line;
  if (absl::ConsumePrefix(&address, "listening grpc=")) address_ = std::string(address.substr(0, address.find(' ')));
}

std::string ServerProcess::Log() const {
  std::ostringstream text;
  text << std::ifstream(LogPath()).rdbuf();
  return text.str();
}

bool ServerProcess::AwaitLog(const std::string& text) const {
  while (true) {
    // The order matters: what a process logs before it leaves must be seen.
    const bool left = process_->HasExited();
    if (absl::StrContains(Log(), text)) return true;
    if (left) return false;
    std::this_thread::yield();
  }
}

}  // namespace sparseagg::service
