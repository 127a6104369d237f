// The soak test: good clients among many bad ones for a long time.
#ifndef SPARSEAGG_TOOLS_LOADGEN_SOAK_H_
#define SPARSEAGG_TOOLS_LOADGEN_SOAK_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/loadgen/load.h"
#include "tools/loadgen/scenarios.h"
#include "tools/loadgen/submit_call.h"

namespace sparseagg::bench {

// What Soak does.
struct SoakFlags {
  std::string target;
  int connections = 200;    // a quarter each of good clients and of bad clients for each Fault
  double seconds = 600;     // at least; the last generation of rounds is completed
  double per_second = 20;   // the most good submissions per second
  double pause_s = 2;       // mean pause between two calls of a bad client
  double patience_s = 120;  // the soak fails if a good submission takes longer, retries included
  int silence_s = Connections::kSilence;
  int server_pid = 0;  // of the server on this machine, to sample its memory; 0: none
  uint64_t seed = 1;
};

// Resident memory of the server at a time.
struct MemorySample {
  double seconds = 0;
  uint64_t bytes = 0;
};

// The measurements of a soak.
struct SoakRun {
  double seconds = 0;
  uint64_t rounds = 0;
  uint64_t submissions = 0;         // acknowledged
  std::vector<double> latency_s;    // of those, from the first attempt
  std::map<int, Refusals> refused;  // refused attempts of good clients, which were retried; by code
  std::vector<uint64_t> faults;     // calls of bad clients, by Fault
  std::map<int, uint64_t> answers;  // to bad clients, by code
  std::vector<MemorySample> resident;
  uint64_t peak_bytes = 0;  // largest resident memory in the life of the server; 0: not sampled
};

// Runs generations of rounds of the plan. In each, every client submits until its submission is acknowledged.
// Errors: std::runtime_error if the counts or results of the rounds are not exactly those of the acknowledged
// submissions, bit for bit, or if the server acknowledged a submission of a bad client.
SoakRun Soak(Plan& plan, const SoakFlags& flags);

std::string SoakJson(const SoakRun& run, const SoakFlags& flags);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_SOAK_H_
