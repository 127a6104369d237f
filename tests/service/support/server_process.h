// The program sparseagg-server as a child process.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_PROCESS_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sparseagg::service {

class ServerProcess {
 public:
  // Starts the server with `args` after --grpc-address 127.0.0.1:0 and no metrics, and with `environment`
  // ("NAME=value") in addition to this process's. The log goes to `log_fd` (borrowed), or to a temporary file if that
  // is -1.
  explicit ServerProcess(std::vector<std::string> args = {}, std::vector<std::string> environment = {},
                         int log_fd = -1);
  ~ServerProcess();  // kills the process if it runs
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Waits for the line on standard output. Returns: the address of the server; empty if the process exits first.
  const std::string& address() const { return address_; }
  void Signal(int number) const;
  // Stops the process until SIGCONT. Blocks: until it has stopped.
  void Pause() const;
  // Waits for the exit. Returns: the exit code, or 1000 + the signal that killed the process.
  int Wait();
  // Returns: the log so far.
  std::string Log() const;
  // Waits until the log contains `text`. Returns: false if the process exits first.
  bool AwaitLog(const std::string& text) const;
  // Returns: the peak resident memory so far.
  uint64_t PeakBytes() const;

 private:
  pid_t pid_ = -1;
  bool left_ = false;
  std::string address_;
  std::string log_path_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_PROCESS_H_
