// The flags, the measurements of submissions one by one and in batches, and their JSON.
#ifndef SPARSEAGG_TOOLS_LOADGEN_MEASURE_H_
#define SPARSEAGG_TOOLS_LOADGEN_MEASURE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/loadgen/rounds.h"
#include "tools/loadgen/sink.h"
#include "tools/loadgen/submissions.h"

namespace sparseagg::bench {

// main.cc has the help of each flag.
struct Flags {
  std::string target;
  Access access;
  std::string workload = "A";
  int divide_clients = 1;
  std::string numerics = "canonical";
  std::string keys = "plain";
  std::string values = "float32";
  bool against_plain = false;
  uint64_t split = 0;
  uint64_t batch = 0;
  uint64_t chunk_bytes = uint64_t{512} << 10;
  int streams = 4;
  int connections = 0;
  int rounds = 1;
  double rate = 0;
  double ramp_s = 0;
  double duration_s = 10;
  int whole_rounds = 0;
  int repetitions = 3;
  int silence_s = Connections::kSilence;
  bool soak = false;
  int server_pid = 0;
  std::vector<std::string> sinks;
  bool allow_refusals = false;
  std::string out;
  std::string serve_sink;
};

inline SinkKind KindOf(const std::string& name) { return name == "raw" ? SinkKind::kRaw : SinkKind::kTyped; }

// Returns: the smallest of `values` that is at least as large as `fraction` of them; 0 if there are none.
double Percentile(std::vector<double> values, double fraction);
inline double Median(const std::vector<double>& values) { return Percentile(values, 0.5); }

// Return JSON: an array of numbers; percentiles in milliseconds; an array of refusals by code; a quoted string.
std::string NumbersJson(const std::vector<double>& values);
std::string LatencyJson(const std::vector<double>& seconds);
std::string RefusedJson(const std::map<int, Refusals>& refused);
std::string StringJson(const std::string& text);

// Measures how fast the server takes submissions. Server, sinks and, with --against-plain, the same tuples in plain
// encodings take turns, so that other load on the machine affects all of them alike.
// Returns: members of a JSON object. "verified" is false if refusals left results that were not compared.
// Errors: std::runtime_error for a wrong result, or a refusal without --allow-refusals.
std::string MeasureIngestAndSinks(const Flags& flags, Plan& plan, Connections& server);

// Measures how many submissions a second the server takes in batches of `flags.batch` clients, `flags.streams` calls at
// any time. Each repetition has a round of its own, whose result is compared bit for bit.
// Returns: members of a JSON object. Errors: std::runtime_error for a refusal or a wrong result.
std::string MeasureBatches(const Flags& flags, Plan& plan, Connections& server);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_MEASURE_H_
