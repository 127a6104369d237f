// The flags of sparseagg-loadgen.
#ifndef SPARSEAGG_TOOLS_LOADGEN_FLAGS_H_
#define SPARSEAGG_TOOLS_LOADGEN_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/loadgen/sink.h"
#include "tools/loadgen/submit_call.h"

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

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_FLAGS_H_
