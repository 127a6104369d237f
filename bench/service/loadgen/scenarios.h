// What is measured: how fast submissions are taken, and how long whole rounds last.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_SCENARIOS_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_SCENARIOS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/workloads.h"
#include "bench/service/loadgen/load.h"
#include "bench/service/loadgen/rounds.h"
#include "bench/service/loadgen/traffic.h"

namespace sparseagg::bench {

// A workload, ready to be sent to rounds open at the same time: client k goes to round k mod num_rounds. `workload`
// must outlive it.
class Plan {
 public:
  // Encodes what is sent; std::invalid_argument as MakeTraffic.
  Plan(const Workload& workload, uint64_t chunk_bytes, int num_rounds, const WireForm& form = {});

  const Workload& workload() const { return workload_; }
  const Traffic& traffic() const { return traffic_; }
  size_t num_rounds() const { return num_rounds_; }
  // `names` has num_rounds() names of rounds; with `passes`, that many times so many, and each client once for each.
  std::vector<Job> Jobs(const std::vector<std::string>& names, size_t passes = 1) const;
  // For a sink, where rounds have no meaning.
  std::vector<Job> SinkJobs() const;
  // Empty, or how the pages of round number `round` differ from what the engine in this process comes to.
  std::string FindDifference(size_t round, const std::vector<v1::ResultPage>& pages);

 private:
  const Workload& workload_;
  const Traffic traffic_;
  const size_t num_rounds_;
  std::vector<Result> expected_;  // by round; made on first use
};

struct IngestRun {
  Outcome outcome;
  double tail_s = 0;   // from the first close to the last result that is ready
  double total_s = 0;  // from the first submission to the last result that is ready
  bool verified = false;
};

// One pass over the plan, or, with a rate, as many as `duration_s` takes. The rounds' figures must agree with what was
// answered (std::runtime_error); with `verify`, and if nothing was refused, so must their results, bit for bit, which
// are then `verified`.
IngestRun MeasureIngest(Connections& connections, Plan& plan, const Pacing& pacing, double duration_s, bool verify);

// Seconds from CreateRound to the last page of the result, of `count` rounds one after the other, each of all clients
// of the plan at once. All results are verified.
std::vector<double> MeasureRounds(Connections& connections, Plan& plan, int count);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_SCENARIOS_H_
