// Good clients among many bad ones, for long: what the server's memory does, and whether everything counts once.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_SOAK_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_SOAK_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/service/loadgen/load.h"
#include "bench/service/loadgen/scenarios.h"
#include "bench/service/loadgen/submit_call.h"

namespace sparseagg::bench {

struct SoakFlags {
  std::string target;
  int connections = 200;    // a quarter of them each good, stalling, vanishing, and sending garbage
  double seconds = 600;     // to the end of a generation of rounds
  double per_second = 20;   // good submissions, at most
  double pause_s = 2;       // of a bad client between two attempts, about
  double patience_s = 120;  // a good submission that takes longer, with all its retries, fails the soak
  int silence_s = Connections::kSilence;
  int server_pid = 0;  // of the server, on this machine; 0: its memory is not looked at
  uint64_t seed = 1;
};

struct MemorySample {
  double seconds = 0;
  uint64_t bytes = 0;
};

struct SoakRun {
  double seconds = 0;
  uint64_t rounds = 0;
  uint64_t submissions = 0;         // acknowledged, and counted
  std::vector<double> latency_s;    // of those, from the first attempt on
  std::map<int, Refusals> refused;  // attempts of good clients that were tried again, by code
  std::vector<uint64_t> misdeeds;   // attempts, by Misdeed
  std::map<int, uint64_t> answers;  // to bad clients, by code
  std::vector<MemorySample> resident;
  uint64_t peak_bytes = 0;  // of resident memory, over the server's life; 0: it was not looked at
};

// Rounds of the plan, one generation after the other, in each of which every client is submitted until it is
// acknowledged. The rounds' counts and results must be those of exactly these submissions, bit for bit, and no bad
// client may have been told that it counts (std::runtime_error).
SoakRun Soak(Plan& plan, const SoakFlags& flags);

std::string SoakJson(const SoakRun& run, const SoakFlags& flags);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_SOAK_H_
