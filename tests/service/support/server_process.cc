#include "tests/service/support/server_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

extern char** environ;

namespace sparseagg::service {

ServerProcess::ServerProcess(std::vector<std::string> args, std::vector<std::string> environment, int log_fd) {
  if (std::find(args.begin(), args.end(), "--grpc-address") == args.end()) {
    args.insert(args.begin(), {"--grpc-address", "127.0.0.1:0"});
  }
  if (std::find(args.begin(), args.end(), "--metrics-address") == args.end()) {
    args.insert(args.begin(), {"--metrics-address", ""});
  }
  if (std::find(args.begin(), args.end(), "--http-address") == args.end()) {
    args.insert(args.begin(), {"--http-address", ""});
  }
  args.insert(args.begin(), SPARSEAGG_SERVER_BINARY);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (std::string& variable : environment) envp.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable) envp.push_back(*variable);
  envp.push_back(nullptr);

  log_path_ = ::testing::TempDir() + "/server_process.XXXXXX";
  const int log = mkstemp(log_path_.data());
  int out[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, log_fd < 0 ? log : log_fd, STDERR_FILENO);
  EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()), 0) << argv[0];
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(log);

  std::string line;
  for (char c; read(out[0], &c, 1) == 1 && c != '\n';) line += c;
  close(out[0]);
  absl::string_view address = line;
  if (absl::ConsumePrefix(&address, "listening grpc=")) address_ = std::string(address.substr(0, address.find(' ')));
}

ServerProcess::~ServerProcess() {
  if (!left_) {
    Signal(SIGKILL);
    Wait();
  }
  unlink(log_path_.c_str());
}

void ServerProcess::Signal(int number) const { kill(pid_, number); }

void ServerProcess::Pause() const {
  Signal(SIGSTOP);
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  EXPECT_TRUE(WIFSTOPPED(status));
}

int ServerProcess::Wait() {
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  left_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

std::string ServerProcess::Log() const {
  std::ostringstream text;
  text << std::ifstream(log_path_).rdbuf();
  return text.str();
}

bool ServerProcess::AwaitLog(const std::string& text) const {
  while (true) {
    // The order matters: what a process logs before it leaves must be seen.
    siginfo_t info = {};
    const bool left = waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
    if (absl::StrContains(Log(), text)) return true;
    if (left) return false;
    std::this_thread::yield();
  }
}

uint64_t ServerProcess::PeakBytes() const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace sparseagg::service
