// The sink: a bare gRPC server with the settings of sparseagg-server, which drops the bytes of the submissions that it
// receives.
#ifndef SPARSEAGG_TOOLS_LOADGEN_SINK_H_
#define SPARSEAGG_TOOLS_LOADGEN_SINK_H_

#include <sys/types.h>

#include <string>

namespace sparseagg::bench {

// Serves on a free port of the loopback interface, prints "listening grpc=ADDRESS", and returns when standard input
// ends.
int ServeSink();

// A process of this program that runs ServeSink.
class SinkProcess {
 public:
  SinkProcess();   // throws std::runtime_error if the process does not start
  ~SinkProcess();  // ends the process
  SinkProcess(const SinkProcess&) = delete;
  SinkProcess& operator=(const SinkProcess&) = delete;

  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  int standard_input_ = -1;
  std::string address_;
};

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_SINK_H_
