// The real sparseagg-server, as a process.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_PROCESS_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sparseagg::service {

class ServerProcess {
 public:
  // Starts the server with `args`, on a free port and without metrics unless they say otherwise, and `environment`
  // ("NAME=value") on top of this process's own. It logs to `log_fd`, borrowed, if there is one, and to a file of ours
  // otherwise.
  explicit ServerProcess(std::vector<std::string> args = {}, std::vector<std::string> environment = {},
                         int log_fd = -1);
  ~ServerProcess();  // kills it if it still runs
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Where it listens: waits for its line on standard output. Empty if it has left without one.
  const std::string& address() const { return address_; }
  void Signal(int number) const;
  // Stops it in the middle of what it does, until it gets SIGCONT. Returns when it has stopped.
  void Pause() const;
  // Waits until it has left: its exit code, or 1000 + the signal that killed it.
  int Wait();
  // What it has logged so far.
  std::string Log() const;
  // Waits until it has logged `text`; false if it leaves without.
  bool AwaitLog(const std::string& text) const;
  // The most memory it has had in RAM so far.
  uint64_t PeakBytes() const;

 private:
  pid_t pid_ = -1;
  bool left_ = false;
  std::string address_;
  std::string log_path_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_PROCESS_H_
