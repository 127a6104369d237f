// sparseagg-loadgen: puts a server under load, verifies its results, and compares it with bare gRPC.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "bench/common/machine.h"
#include "bench/common/workloads.h"
#include "service/grpc/grpc_options.h"
#include "service/version.h"
#include "tools/loadgen/rounds.h"
#include "tools/loadgen/sink.h"
#include "tools/loadgen/submissions.h"

namespace sparseagg::bench {
namespace {

constexpr uint64_t kSeed = 1;

// The flags have the help of each.
struct Flags {
  std::string target;
  Access access;
  std::string workload = "A";
  int divide_clients = 1;
  std::string keys = "plain";
  std::string values = "float32";
  uint64_t chunk_bytes = uint64_t{512} << 10;
  int streams = 4;
  int rounds = 1;
  double rate = 0;
  double ramp_s = 0;
  double duration_s = 10;
  int whole_rounds = 0;
  int repetitions = 3;
  int silence_s = Connections::kSilence;
  std::string sink;
  std::string out;
};

// Returns: the smallest of `values` that is at least as large as `fraction` of them; 0 if there are none.
double Percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  const size_t index = std::clamp<size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

double Median(const std::vector<double>& values) { return Percentile(values, 0.5); }

std::string NumbersJson(const std::vector<double>& values) {
  const auto format = [](std::string* out, double value) { absl::StrAppendFormat(out, "%.6f", value); };
  return absl::StrCat("[", absl::StrJoin(values, ", ", format), "]");
}

std::string LatencyJson(const std::vector<double>& seconds) {
  return absl::StrFormat(R"({"count": %d, "p50_ms": %.3f, "p90_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f})",
                         seconds.size(), 1e3 * Percentile(seconds, 0.5), 1e3 * Percentile(seconds, 0.9),
                         1e3 * Percentile(seconds, 0.99), 1e3 * Percentile(seconds, 1));
}

std::string StringJson(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
}

std::string Header(const Flags& flags, const Plan& plan, Connections& server) {
  const v1::ServerInfo info = Rounds(server, plan.workload().spec).Info();
  return absl::StrFormat(
      R"("date": "%s", "cpu": %s, "server": %s, "engine": %s, "seed": %d, "workload": "%s", "description": %s, )"
      R"("keys": "%s", "values": "%s", "clients": %d, "tuples": %d, "bytes": %d, "bytes_per_tuple": %.3f, )"
      R"("chunk_bytes": %d)",
      Today(), StringJson(CpuName()), StringJson(info.version()), StringJson(info.engine_description()), kSeed,
      plan.workload().name, StringJson(plan.workload().description), flags.keys, flags.values,
      plan.traffic().submissions.size(), plan.traffic().tuples, plan.traffic().bytes,
      static_cast<double>(plan.traffic().bytes) / static_cast<double>(plan.traffic().tuples), flags.chunk_bytes);
}

// Measures rounds of all clients at once, one round after the other. Returns: members of a JSON object.
std::string MeasureWholeRounds(const Flags& flags, Plan& plan, Connections& server) {
  MeasureRounds(server, plan, 1);  // warm
  return absl::StrFormat(R"("mode": "rounds", "latency": %s)",
                         LatencyJson(MeasureRounds(server, plan, flags.whole_rounds)));
}

// Measures how fast the server takes submissions. Server and sink take turns, so that other load on the machine affects
// both alike. Returns: members of a JSON object.
std::string MeasureSubmissions(const Flags& flags, Plan& plan, Connections& server) {
  const Pacing pacing{flags.streams, flags.rate, flags.ramp_s};
  std::unique_ptr<Connections> to_sink;
  if (!flags.sink.empty()) {
    to_sink = std::make_unique<Connections>(flags.sink, flags.streams);
    Run(*to_sink, plan.SinkJobs(), pacing);  // warm
  }
  if (flags.rate == 0) MeasureIngest(server, plan, pacing, 0);  // warm
  std::vector<double> sink_s, ingest_s, tail_s, total_s, latency_s;
  uint64_t bytes = 0, tuples = 0;
  for (int i = 0; i < flags.repetitions; ++i) {
    if (to_sink != nullptr) sink_s.push_back(Run(*to_sink, plan.SinkJobs(), pacing).seconds);
    const IngestRun run = MeasureIngest(server, plan, pacing, flags.duration_s);
    ingest_s.push_back(run.outcome.seconds);
    tail_s.push_back(run.tail_s);
    total_s.push_back(run.total_s);
    bytes += run.outcome.bytes;
    tuples += run.outcome.tuples;
    latency_s.insert(latency_s.end(), run.outcome.latency_s.begin(), run.outcome.latency_s.end());
  }
  // The mean of a run, by the time of the median run.
  const auto per_second = [&](uint64_t sum, const std::vector<double>& seconds) {
    return static_cast<double>(sum) / flags.repetitions / Median(seconds);
  };
  std::string json = absl::StrFormat(
      R"("mode": "ingest", "streams": %d, "rounds": %d, "rate_per_s": %g, "ramp_s": %g, )"
      R"("ingest_seconds": %s, "tail_seconds": %s, "total_seconds": %s, "bytes_per_s": %.0f, "tuples_per_s": %.0f, )"
      R"("tail_share": %.4f, "submissions_per_s": %.1f, "latency": %s)",
      flags.streams, plan.num_rounds(), flags.rate, flags.ramp_s, NumbersJson(ingest_s), NumbersJson(tail_s),
      NumbersJson(total_s), per_second(bytes, ingest_s), per_second(tuples, ingest_s),
      Median(tail_s) / Median(ingest_s), per_second(latency_s.size(), ingest_s), LatencyJson(latency_s));
  if (to_sink != nullptr) {
    const double sink_rate = static_cast<double>(plan.traffic().bytes) / Median(sink_s);
    absl::StrAppendFormat(&json,
                          R"(, "sink": {"seconds": %s, "bytes_per_s": %.0f, "share": %.4f, "share_with_merge": %.4f})",
                          NumbersJson(sink_s), sink_rate, per_second(bytes, ingest_s) / sink_rate,
                          per_second(bytes, total_s) / sink_rate);
  }
  return json;
}

void Measure(const Flags& flags) {
  Workload workload = MakeWorkload(flags.workload, kSeed, flags.divide_clients);
  const WireForm form{flags.keys == "packed", flags.values == "float16"};
  if (form.float16_values) RoundValuesToFloat16(workload);
  Plan plan(workload, flags.chunk_bytes, flags.whole_rounds > 0 ? 1 : flags.rounds, form);
  Connections server(flags.target, flags.streams, flags.silence_s, flags.access);
  const std::string header = Header(flags, plan, server);
  const std::string json = absl::StrCat(
      "{", header, ", \"verified\": true, ",
      flags.whole_rounds > 0 ? MeasureWholeRounds(flags, plan, server) : MeasureSubmissions(flags, plan, server),
      "}\n");
  if (flags.out.empty()) {
    std::fputs(json.c_str(), stdout);
    return;
  }
  std::ofstream out(flags.out);
  out << json;
  if (!out.good()) throw std::runtime_error("cannot write " + flags.out);
}

}  // namespace
}  // namespace sparseagg::bench

int main(int argc, char** argv) {
  sparseagg::service::DisableMutexDeadlockDetection();
  CLI::App app(
      "Puts a server under load over real sockets, compares its results bit for bit with the engine in this process, "
      "and writes one JSON object. The exit status is 1 for a wrong result or a refusal.",
      "sparseagg-loadgen");
  app.set_version_flag("--version", std::string("sparseagg-loadgen ") + sparseagg::service::kVersion);
  sparseagg::bench::Flags flags;
  CLI::Option* target = app.add_option("--target", flags.target, "HOST:PORT of the server");
  CLI::Option* tls_ca = app.add_option("--tls-ca", flags.access.tls_ca, "use TLS: PEM file of the server's authority");
  app.add_option("--token-file", flags.access.token_file, "file with the bearer token")->needs(tls_ca);
  app.add_option("--workload", flags.workload, "A to M, D48 and D64, see bench/common/workloads.cc")
      ->capture_default_str();
  app.add_option("--divide-clients", flags.divide_clients, "divide the number of clients by this")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--keys", flags.keys,
                 "plain, or packed (DELTA_BITPACKED), which needs sorted keys: not for workload D")
      ->check(CLI::IsMember({"plain", "packed"}))
      ->capture_default_str();
  app.add_option("--values", flags.values, "float32, or float16: rounds the values of the workload first")
      ->check(CLI::IsMember({"float32", "float16"}))
      ->capture_default_str();
  app.add_option("--chunk-bytes", flags.chunk_bytes, "encoded keys and values per message")->capture_default_str();
  app.add_option("--streams", flags.streams, "TCP connections; without --rate, each has a submission at any time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", flags.rounds, "open rounds; the clients are divided among them")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI::Option* rate =
      app.add_option(
             "--rate", flags.rate,
             "submissions per second, each started on time even if earlier ones are late; rounds stay open to the end")
          ->check(CLI::NonNegativeNumber);
  app.add_option("--duration", flags.duration_s, "seconds, with --rate; the last pass over all clients is completed")
      ->capture_default_str();
  app.add_option("--ramp", flags.ramp_s, "seconds over which the rate grows from 0, or the streams are started")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--whole-rounds", flags.whole_rounds,
                 "measure this many rounds, one after the other, each from its creation to the last page of the "
                 "result; all clients submit at once")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--repetitions", flags.repetitions, "timed runs; the report has their medians")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--sink", flags.sink, "HOST:PORT of a --serve-sink: between runs, also send there")->excludes(rate);
  app.add_option(
         "--silence", flags.silence_s,
         "seconds without data from the server before a keepalive ping, and from the ping to the failure of the call")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--out", flags.out, "JSON file to write, instead of standard output");
  bool serve_sink = false;
  app.add_flag("--serve-sink", serve_sink,
               "run a bare gRPC server that drops the bytes of messages, until standard input ends; prints its address")
      ->excludes(target);
  std::string folder;
  app.add_option("--export", folder, "measure nothing, but write the workload's arrays into this folder");
  CLI11_PARSE(app, argc, argv);
  try {
    using namespace sparseagg::bench;
    if (serve_sink) return ServeSink();
    if (!folder.empty()) {
      ExportWorkload(MakeWorkload(flags.workload, kSeed, flags.divide_clients), folder);
    } else if (flags.target.empty()) {
      throw std::runtime_error("--target is missing");
    } else {
      Measure(flags);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sparseagg-loadgen: %s\n", error.what());
    return 1;
  }
  return 0;
}
