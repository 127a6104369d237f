// The program sparseagg-server as a child process.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_PROCESS_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_PROCESS_H_

#include <optional>
#include <string>
#include <vector>

#include "tests/service/support/child_process.h"
#include "tests/service/support/temporary_directory.h"

namespace sparseagg::service {

// The destructor kills the server if it runs.
class ServerProcess {
 public:
  // Starts the server with `args` after --grpc-address 127.0.0.1:0 and no metrics, and with `environment`
  // ("NAME=value") in addition to this process's. The log goes to `log_fd` (borrowed), or to a temporary file if that
  // is -1. `launcher`: words before the program, as {"nohup"}.
  // Throws: std::system_error if the program cannot be started. A program that ends by itself is no error.
  explicit ServerProcess(std::vector<std::string> args = {}, std::vector<std::string> environment = {}, int log_fd = -1,
                         std::vector<std::string> launcher = {});
  // Returns: the address of the server, which listens since the constructor; empty if the process has ended instead.
  const std::string& address() const { return address_; }
  // As those of ChildProcess.
  void Signal(int number) const { process_->Signal(number); }
  void Pause() const { process_->Pause(); }
  int Wait() { return process_->Wait(); }
  // Returns: the log so far. A line is there after AwaitLog for it or for a later line, or after Wait; a line from
  // before the server listened is there at once.
  std::string Log() const;
  // Waits until the log contains `text`. Returns: false if the process exits first.
  bool AwaitLog(const std::string& text) const;

 private:
  std::string LogPath() const { return folder_ / "log"; }

  const TemporaryDirectory folder_;
  std::optional<ChildProcess> process_;
  std::string address_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_PROCESS_H_
