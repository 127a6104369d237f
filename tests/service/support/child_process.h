// A program as a child process.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_CHILD_PROCESS_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "service/net/address.h"

namespace sparseagg::service {

// A running child, with a descriptor of the process in place of its id: a signal to a child that was never started, or
// that has been waited for, is an error and reaches no other process.
//
// Life cycle: the constructor starts the child; Wait collects its status; the destructor kills it without a Wait.
class ChildProcess {
 public:
  // Starts `argv[0]`, which is looked for in the PATH, with `environment` ("NAME=value") in addition to this process's.
  // Its standard output and error go to the descriptors `out` and `err` (borrowed). Signals that this process ignores
  // or blocks, as under nohup, have their default effect in the child.
  // Throws: std::system_error if the program cannot be started.
  ChildProcess(std::vector<std::string> argv, std::vector<std::string> environment, int out, int err);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Signal, Pause, Wait. Throws: std::system_error if the child has been waited for.
  void Signal(int number) const;
  // Stops the child until SIGCONT. Blocks: until it has stopped.
  void Pause() const;
  // Waits for the exit. Returns: the exit code, or 1000 + the signal that killed the child.
  int Wait();
  bool HasExited() const;

 private:
  pid_t pid_ = -1;
  OwnedFd process_;  // a pidfd; none after Wait
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_CHILD_PROCESS_H_
