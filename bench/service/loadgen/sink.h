// What gRPC itself takes: a server that receives the bytes of submissions, on the same kind of stream and with the
// settings of sparseagg-server, and does nothing with them.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_SINK_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_SINK_H_

#include <sys/types.h>

#include <string>

namespace sparseagg::bench {

enum class SinkKind {
  kRaw,    // messages are dropped as they come from the wire
  kTyped,  // messages are parsed into v1.UpdateChunk first
};

// Serves on a free port of the loopback, prints "listening grpc=ADDRESS", and returns when standard input ends.
int ServeSink(SinkKind kind);

// This program, run again as a sink: in a process of its own, as a server is.
class SinkProcess {
 public:
  explicit SinkProcess(SinkKind kind);  // std::runtime_error if it does not start
  ~SinkProcess();                       // ends it
  SinkProcess(const SinkProcess&) = delete;
  SinkProcess& operator=(const SinkProcess&) = delete;

  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  int standard_input_ = -1;
  std::string address_;
};

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_SINK_H_
