#include "tests/service/support/child_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

extern char** environ;

namespace sparseagg::service {
namespace {

// A constructor cannot ASSERT, and a test must not go on without the child.
void Check(int error, const std::string& what) {
  if (error != 0) throw std::system_error(error, std::generic_category(), what);
}

siginfo_t WaitFor(const OwnedFd& process, int options) {
  siginfo_t info = {};
  Check(waitid(P_PIDFD, static_cast<id_t>(process.get()), &info, options) == 0 ? 0 : errno, "waitid");
  return info;
}

}  // namespace

ChildProcess::ChildProcess(std::vector<std::string> argv, std::vector<std::string> environment, int out, int err) {
  std::vector<char*> words;
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  std::vector<char*> variables;
  for (std::string& variable : environment) variables.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  variables.push_back(nullptr);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  const int failed = posix_spawnp(&pid_, words[0], &files, &attributes, words.data(), variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  Check(failed, "cannot start " + argv[0]);
  process_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  Check(process_.get() >= 0 ? 0 : errno, "pidfd_open");
}

ChildProcess::~ChildProcess() {
  if (process_.get() < 0) return;
  Signal(SIGKILL);
  Wait();
}

void ChildProcess::Signal(int number) const {
  Check(syscall(SYS_pidfd_send_signal, process_.get(), number, nullptr, 0) == 0 ? 0 : errno, "pidfd_send_signal");
}

void ChildProcess::Pause() const {
  Signal(SIGSTOP);
  const siginfo_t info = WaitFor(process_, WSTOPPED | WEXITED | WNOWAIT);
  if (info.si_code != CLD_STOPPED) Check(ESRCH, "the child has ended");
}

int ChildProcess::Wait() {
  const siginfo_t info = WaitFor(process_, WEXITED);
  process_.Reset();
  return info.si_code == CLD_EXITED ? info.si_status : 1000 + info.si_status;
}

bool ChildProcess::HasExited() const {
  if (process_.get() < 0) return true;
  return WaitFor(process_, WEXITED | WNOHANG | WNOWAIT).si_pid != 0;
}

}  // namespace sparseagg::service
