// Submissions: a workload in serialized messages, the calls that send them, and many calls at a given pace.
#ifndef SPARSEAGG_TOOLS_LOADGEN_SUBMISSIONS_H_
#define SPARSEAGG_TOOLS_LOADGEN_SUBMISSIONS_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/common/workloads.h"

namespace sparseagg::bench {

// The update of one client. The first chunk has no ids, so that it can be sent to any round (WithIds).
struct Submission {
  std::string client_id;
  std::vector<grpc::ByteBuffer> chunks;  // at least one
  uint64_t tuples = 0;
  uint64_t bytes = 0;  // of the serialized chunks
};

// The updates of all clients.
struct Traffic {
  std::vector<Submission> submissions;  // in the order of the clients, which is that of their ids
  uint64_t tuples = 0;
  uint64_t bytes = 0;
};

// The encodings of keys and values.
struct WireForm {
  bool packed_keys = false;     // DELTA_BITPACKED instead of U32 or U64; keys must strictly ascend
  bool float16_values = false;  // instead of FLOAT32
};

// Rounds the values of the workload to float16, so that FLOAT16 encodes them exactly.
// Errors: std::invalid_argument if a value is beyond the range of float16.
void RoundValuesToFloat16(Workload& workload);

// Encodes the updates in chunks of about `chunk_bytes` encoded keys and values, and at least one tuple.
// Errors: std::invalid_argument if `form` cannot represent the keys or values exactly.
Traffic MakeTraffic(const Workload& workload, uint64_t chunk_bytes, const WireForm& form = {});

// Returns: an id like "c00000007"; ids sort as their numbers do.
std::string ClientId(size_t number);

// Returns: the first chunk of the submission with its ids, for `round`. Shares the memory of the tuples.
grpc::ByteBuffer WithIds(const Submission& submission, const std::string& round);

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

// When submissions start. With a rate (open loop), each starts at its due time even if earlier ones are late, and its
// latency counts from the due time: a slow server cannot slow its own measurement down. Without a rate (closed loop),
// `streams` submissions run at any time.
struct Pacing {
  int streams = 4;
  double per_second = 0;  // 0: no rate
  double ramp_s = 0;      // the time over which streams are added, or the rate grows from 0
};

// The measurements of one run.
struct Outcome {
  double seconds = 0;  // from the start of the first to the end of the last
  uint64_t bytes = 0;
  uint64_t tuples = 0;
  std::vector<double> latency_s;
};

// Returns: when submission `i` is due, in seconds after the start.
double DueTime(const Pacing& pacing, size_t i);

// Sends all jobs and waits for the answers. Not thread-safe on the same connections.
// Errors: std::runtime_error with the first refusal, when all jobs have ended.
Outcome Run(Connections& connections, const std::vector<Job>& jobs, const Pacing& pacing);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_SUBMISSIONS_H_
