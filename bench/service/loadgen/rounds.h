// The coordinator's part: rounds are opened, closed and read, and their results held to the engine in this process.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_ROUNDS_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_ROUNDS_H_

#include <memory>
#include <string>
#include <vector>

#include "bench/common/workloads.h"
#include "bench/service/loadgen/submit_call.h"
#include "host/result.h"
#include "sparseagg/v1/aggregation.grpc.pb.h"

namespace sparseagg::bench {

// Blocking calls; std::runtime_error with the server's status for any that fails. Thread-safe.
class Rounds {
 public:
  Rounds(Connections& connections, const TensorSpec& spec);

  v1::ServerInfo Info();
  std::string Create();  // its name
  void Close(const std::string& name);
  v1::Round AwaitDone(const std::string& name);
  std::vector<v1::ResultPage> Read(const std::string& name);
  void Delete(const std::string& name);

 private:
  const std::unique_ptr<v1::Aggregation::Stub> stub_;
  v1::RoundSpec spec_;
};

// What the workload's clients number first, first + step, … merge to, by the CPU engine.
Result MergeHere(const Workload& workload, size_t first, size_t step);

// Empty if the pages hold exactly the bits of `expected`, otherwise where they do not.
std::string FindDifference(const Result& expected, const std::vector<v1::ResultPage>& pages);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_ROUNDS_H_
