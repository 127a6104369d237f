// The coordinator's part: creates, closes, reads and deletes rounds, checks their results, and times them.
#ifndef SPARSEAGG_TOOLS_LOADGEN_ROUNDS_H_
#define SPARSEAGG_TOOLS_LOADGEN_ROUNDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/common/workloads.h"
#include "host/result.h"
#include "sparseagg/v1/aggregation.grpc.pb.h"
#include "tools/loadgen/submissions.h"

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

// A workload, encoded for several open rounds: client k submits to round k mod num_rounds. Borrows `workload`.
class Plan {
 public:
  // Encodes the traffic. Errors: std::invalid_argument as MakeTraffic.
  Plan(const Workload& workload, uint64_t chunk_bytes, int num_rounds, const WireForm& form = {});

  const Workload& workload() const { return workload_; }
  const Traffic& traffic() const { return traffic_; }
  size_t num_rounds() const { return num_rounds_; }
  // `names`: the names of passes · num_rounds() rounds.
  // Returns: for each pass, one job per client.
  std::vector<Job> Jobs(const std::vector<std::string>& names, size_t passes = 1) const;
  // Returns: one job per client for a sink, which ignores the round.
  std::vector<Job> SinkJobs() const;
  // Compares the pages of round number `round` with the result of the engine in this process.
  // Errors: std::runtime_error with the first difference.
  void Verify(size_t round, const std::string& name, const std::vector<v1::ResultPage>& pages);

 private:
  const Workload& workload_;
  const Traffic traffic_;
  const size_t num_rounds_;
  std::vector<Result> expected_;  // by round; made on first use
};

// The measurements of one ingest run.
struct IngestRun {
  Outcome outcome;
  double tail_s = 0;   // from the first close until all results are ready
  double total_s = 0;  // from the first submission until all results are ready
};

// Submits all clients of the plan once, or, with a rate, as often as `duration_s` takes, and compares all results bit
// for bit. Errors: std::runtime_error for a refused submission, for counts of the rounds that differ from the
// acknowledged submissions, and for a wrong result.
IngestRun MeasureIngest(Connections& connections, Plan& plan, const Pacing& pacing, double duration_s);

// Runs `count` rounds, one after the other; all clients submit at once. Verifies all results.
// Returns: for each round, the seconds from CreateRound to the last page of the result.
std::vector<double> MeasureRounds(Connections& connections, Plan& plan, int count);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_ROUNDS_H_
