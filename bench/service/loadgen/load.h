// Many submissions at once, paced.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_LOAD_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_LOAD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/service/loadgen/submit_call.h"
#include "bench/service/loadgen/traffic.h"

namespace sparseagg::bench {

// With a rate, submissions start at their times whatever has become of the earlier ones, and latencies count from the
// time at which one should have started: a slow server cannot slow its own measurement down. Without, `streams` of them
// are under way at any time.
struct Pacing {
  int streams = 4;
  double per_second = 0;  // 0: no rate
  double ramp_s = 0;      // streams are added, or the rate grows from nothing, over so long
};

struct Refusals {
  uint64_t count = 0;
  std::string first_message;
};

struct Outcome {
  double seconds = 0;  // from the start of the first to the end of the last
  uint64_t bytes = 0;  // of those that were counted, as are tuples
  uint64_t tuples = 0;
  std::vector<double> latency_s;    // of those that were counted
  std::map<int, Refusals> refused;  // by code
};

// When submission `i` is due, in seconds.
double DueTime(const Pacing& pacing, size_t i);

// Sends them all, and waits for the answers. Not thread-safe on the same connections.
Outcome Run(Connections& connections, const std::vector<Job>& jobs, const Pacing& pacing);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_LOAD_H_
