// SubmitUpdate calls that send serialized messages.
#ifndef SPARSEAGG_TOOLS_LOADGEN_SUBMIT_CALL_H_
#define SPARSEAGG_TOOLS_LOADGEN_SUBMIT_CALL_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/loadgen/traffic.h"

namespace sparseagg::bench {

// How to call a server with credentials.
struct Access {
  std::string tls_ca;      // PEM file of the authorities of the server's certificate; empty: no TLS
  std::string token_file;  // with the bearer token, which needs TLS; empty: none
};

// TCP connections to one server.
class Connections {
 public:
  // Connects. Errors: std::runtime_error after ten seconds, or if a file cannot be read. If the server is silent for
  // `silence_s` seconds during a call, gRPC sends a keepalive ping; without an answer within `silence_s` seconds the
  // call fails.
  Connections(const std::string& target, int count, int silence_s = kSilence, const Access& access = {});

  static constexpr int kSilence = 20;

  // Returns: connection i mod size().
  grpc::GenericStub& stub(size_t i) { return stubs_[i % stubs_.size()]; }
  const std::shared_ptr<grpc::Channel>& channel(size_t i = 0) const { return channels_[i % channels_.size()]; }
  size_t size() const { return channels_.size(); }

 private:
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<grpc::GenericStub> stubs_;
};

// One submission to one round.
struct Job {
  const Submission* submission;
  std::string round;
  bool counted = true;  // the response must count all tuples; false for sinks
};

// Sends `job` and calls `done` once, on a gRPC thread, with the status of the call: INTERNAL if the response counts
// another number of tuples than were sent. Borrows `job` until then.
void Submit(grpc::GenericStub& stub, const Job& job, std::function<void(grpc::Status)> done);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_SUBMIT_CALL_H_
