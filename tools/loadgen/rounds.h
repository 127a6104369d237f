// The part of the coordinator: creates, closes, reads and deletes rounds, and checks their results.
#ifndef SPARSEAGG_TOOLS_LOADGEN_ROUNDS_H_
#define SPARSEAGG_TOOLS_LOADGEN_ROUNDS_H_

#include <memory>
#include <string>
#include <vector>

#include "bench/common/workloads.h"
#include "host/result.h"
#include "sparseagg/v1/aggregation.grpc.pb.h"
#include "tools/loadgen/submit_call.h"

namespace sparseagg::bench {

// Makes the calls of a coordinator. Every call blocks, and throws std::runtime_error if the server refuses it.
// Thread-safe.
class Rounds {
 public:
  Rounds(Connections& connections, const TensorSpec& spec);

  v1::ServerInfo Info();
  std::string Create();  // returns the name of the round
  void Close(const std::string& name);
  v1::Round AwaitDone(const std::string& name);
  std::vector<v1::ResultPage> Read(const std::string& name);
  void Delete(const std::string& name);

 private:
  const std::unique_ptr<v1::Aggregation::Stub> stub_;
  v1::RoundSpec spec_;
};

// Merges the updates of the clients first, first + step, … with the CPU engine in this process.
Result MergeHere(const Workload& workload, size_t first, size_t step);

// Returns: an empty string if the pages have exactly the bits of `expected`, otherwise the first difference.
std::string FindDifference(const Result& expected, const std::vector<v1::ResultPage>& pages);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_ROUNDS_H_
