// Many submissions at once, at a given pace.
#ifndef SPARSEAGG_TOOLS_LOADGEN_LOAD_H_
#define SPARSEAGG_TOOLS_LOADGEN_LOAD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/loadgen/submit_call.h"
#include "tools/loadgen/traffic.h"

namespace sparseagg::bench {

// When submissions start. With a rate (open loop), each starts at its due time even if earlier ones are late, and its
// latency counts from the due time: a slow server cannot slow its own measurement down. Without a rate (closed loop),
// `streams` submissions run at any time.
struct Pacing {
  int streams = 4;
  double per_second = 0;  // 0: no rate
  double ramp_s = 0;      // the time over which streams are added, or the rate grows from 0
};

// Refused submissions with one code.
struct Refusals {
  uint64_t count = 0;
  std::string first_message;
};

// The measurements of one run.
struct Outcome {
  double seconds = 0;  // from the start of the first to the end of the last
  uint64_t bytes = 0;  // of acknowledged submissions; so are the next two
  uint64_t tuples = 0;
  std::vector<double> latency_s;
  std::map<int, Refusals> refused;  // by code
};

// Returns: when submission `i` is due, in seconds after the start.
double DueTime(const Pacing& pacing, size_t i);

// Sends all jobs and waits for the answers. Not thread-safe on the same connections.
Outcome Run(Connections& connections, const std::vector<Job>& jobs, const Pacing& pacing);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_LOAD_H_
