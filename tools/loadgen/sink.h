// The sink: a bare gRPC server with the settings of sparseagg-server, which drops the submissions that it receives.
#ifndef SPARSEAGG_TOOLS_LOADGEN_SINK_H_
#define SPARSEAGG_TOOLS_LOADGEN_SINK_H_

#include <sys/types.h>

#include <string>

namespace sparseagg::bench {

// How much a sink does.
enum class SinkKind {
  kRaw,    // drops the bytes of messages
  kTyped,  // parses messages into v1.UpdateChunk, then drops them
};

// Serves on a free port of the loopback interface, prints "listening grpc=ADDRESS", and returns when standard input
// ends.
int ServeSink(SinkKind kind);

// A process of this program that runs ServeSink.
class SinkProcess {
 public:
  explicit SinkProcess(SinkKind kind);  // throws std::runtime_error if the process does not start
  ~SinkProcess();                       // ends the process
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
