// One submission in one stream, at the speed of the wire: what it sends is serialised already.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_SUBMIT_CALL_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_SUBMIT_CALL_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/service/loadgen/traffic.h"

namespace sparseagg::bench {

// Connections to one server. Each is a TCP connection of its own, as clients on different machines have.
class Connections {
 public:
  // Connected on return; std::runtime_error if that takes more than ten seconds. A server that is silent during a call
  // for `silence_s` seconds is asked whether it is there, and its calls fail if it does not answer for as long again.
  Connections(const std::string& target, int count, int silence_s = kSilence);

  static constexpr int kSilence = 20;

  // Number i, counted around.
  grpc::GenericStub& stub(size_t i) { return stubs_[i % stubs_.size()]; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channels_[0]; }
  size_t size() const { return channels_.size(); }

 private:
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<grpc::GenericStub> stubs_;
};

struct Job {
  const Submission* submission;
  std::string round;
  bool counted = true;  // the answer must say that all tuples were; a sink's does not
};

// Sends `job`, which is borrowed until then, and calls `done` on one of gRPC's threads. A call that is refused ends
// with the server's status; one that is answered with another number of tuples than was sent, with INTERNAL.
void Submit(grpc::GenericStub& stub, const Job& job, std::function<void(grpc::Status)> done);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_SUBMIT_CALL_H_
