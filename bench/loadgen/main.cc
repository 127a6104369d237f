// sparseagg-loadgen: puts a server under load, checks what it answers, and compares it with what gRPC itself takes.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/loadgen/report.h"
#include "bench/loadgen/scenarios.h"
#include "bench/loadgen/sink.h"
#include "bench/loadgen/soak.h"
#include "bench/machine.h"
#include "bench/workloads.h"

namespace sparseagg::bench {
namespace {

constexpr uint64_t kSeed = 1;

struct Flags {
  std::string target;
  std::string workload = "A";
  int divide_clients = 1;
  std::string numerics = "canonical";
  uint64_t chunk_bytes = uint64_t{512} << 10;
  int streams = 4;
  int connections = 0;
  int rounds = 1;
  double rate = 0;
  double ramp_s = 0;
  double duration_s = 10;
  int whole_rounds = 0;
  int repetitions = 3;
  bool soak = false;
  int server_pid = 0;
  std::vector<std::string> sinks;
  bool allow_refusals = false;
  std::string out;
  std::string serve_sink;
};

SinkKind KindOf(const std::string& name) { return name == "raw" ? SinkKind::kRaw : SinkKind::kTyped; }

std::string Today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof(text), "%Y-%m-%d", std::gmtime(&now));
  return text;
}

// One sink's process, its connections, and what was measured of it.
struct Sink {
  Sink(const std::string& the_name, int connections)
      : name(the_name), process(KindOf(the_name)), channels(process.address(), connections) {}
  std::string name;
  SinkProcess process;
  Connections channels;
  std::vector<double> seconds;
};

Workload Prepare(const Flags& flags) {
  Workload workload = MakeWorkload(flags.workload, kSeed, flags.divide_clients);
  if (flags.numerics == "fixed_point") {
    AggregationSpec& aggregation = workload.spec.aggregation;
    aggregation.numerics = Numerics::kFixedPoint;
    aggregation.value_bound = 1.0;
    aggregation.max_submissions = workload.clients.size();
  }
  return workload;
}

std::string Header(const Flags& flags, const Plan& plan, Connections& server) {
  const v1::ServerInfo info = Rounds(server, plan.workload().spec).Info();
  return absl::StrFormat(
      R"("date": "%s", "cpu": %s, "server": %s, "engine": %s, "seed": %d, "workload": "%s", "description": %s, )"
      R"("numerics": "%s", "clients": %d, "tuples": %d, "bytes": %d, "chunk_bytes": %d, "connections": %d, )"
      R"("verified": true)",
      Today(), StringJson(CpuName()), StringJson(info.version()), StringJson(info.engine_description()), kSeed,
      plan.workload().name, StringJson(plan.workload().description), flags.numerics, plan.traffic().submissions.size(),
      plan.traffic().tuples, plan.traffic().bytes, flags.chunk_bytes, server.size());
}

void FailOnRefusals(const Flags& flags, const Outcome& outcome) {
  if (flags.allow_refusals || outcome.refused.empty()) return;
  const auto& [code, refusals] = *outcome.refused.begin();
  throw std::runtime_error(
      absl::StrCat(refusals.count, " submissions were refused with code ", code, ": ", refusals.first_message));
}

// Sinks and server take turns, so that what else happens on the machine meets them alike.
std::string MeasureIngestAndSinks(const Flags& flags, Plan& plan, Connections& server) {
  const Pacing pacing{flags.streams, flags.rate, flags.ramp_s};
  Pacing sink_pacing = pacing;
  sink_pacing.per_second = 0;
  std::vector<std::unique_ptr<Sink>> sinks;
  for (const std::string& name : flags.sinks) {
    sinks.push_back(std::make_unique<Sink>(name, static_cast<int>(server.size())));
    Run(sinks.back()->channels, plan.SinkJobs(), sink_pacing);  // warm
  }
  // Once to verify, and to warm the server.
  if (flags.rate == 0) {
    FailOnRefusals(flags, MeasureIngest(server, plan, pacing, 0, /*verify=*/true).outcome);
  }
  std::vector<double> ingest;
  std::vector<double> tail;
  std::vector<double> total;
  Outcome all;
  for (int i = 0; i < flags.repetitions; ++i) {
    for (const auto& sink : sinks) {
      const Outcome outcome = Run(sink->channels, plan.SinkJobs(), sink_pacing);
      if (!outcome.refused.empty()) throw std::runtime_error("the sink refused a submission");
      sink->seconds.push_back(outcome.seconds);
    }
    const IngestRun run = MeasureIngest(server, plan, pacing, flags.duration_s, /*verify=*/flags.rate != 0);
    FailOnRefusals(flags, run.outcome);
    ingest.push_back(run.outcome.seconds);
    tail.push_back(run.tail_s);
    total.push_back(run.total_s);
    all.bytes += run.outcome.bytes;
    all.latency_s.insert(all.latency_s.end(), run.outcome.latency_s.begin(), run.outcome.latency_s.end());
    for (const auto& [code, refusals] : run.outcome.refused) {
      Refusals& sum = all.refused[code];
      if (sum.count == 0) sum.first_message = refusals.first_message;
      sum.count += refusals.count;
    }
  }
  const double bytes = static_cast<double>(all.bytes) / flags.repetitions;
  const double seconds = Median(ingest);
  std::vector<std::string> sink_json;
  for (const auto& sink : sinks) {
    const double sink_seconds = Median(sink->seconds);
    sink_json.push_back(
        absl::StrFormat(R"("%s": {"seconds": %s, "bytes_per_s": %.0f, "share": %.4f, "share_with_merge": %.4f})",
                        sink->name, NumbersJson(sink->seconds), plan.traffic().bytes / sink_seconds,
                        sink_seconds / seconds, sink_seconds / Median(total)));
  }
  return absl::StrFormat(
      R"("mode": "ingest", "streams": %d, "rounds": %d, "rate_per_s": %g, "ramp_s": %g, "ingest_seconds": %s, )"
      R"("tail_seconds": %s, "total_seconds": %s, "bytes_per_s": %.0f, "tuples_per_s": %.0f, "tail_share": %.4f, )"
      R"("submissions_per_s": %.1f, "latency": %s, "refused": %s, "sinks": {%s})",
      flags.streams, plan.num_rounds(), flags.rate, flags.ramp_s, NumbersJson(ingest), NumbersJson(tail),
      NumbersJson(total), bytes / seconds, bytes / seconds * plan.traffic().tuples / plan.traffic().bytes,
      Median(tail) / seconds, static_cast<double>(all.latency_s.size()) / flags.repetitions / seconds,
      LatencyJson(all.latency_s), RefusedJson(all.refused), absl::StrJoin(sink_json, ", "));
}

std::string MeasureWholeRounds(const Flags& flags, Plan& plan, Connections& server) {
  MeasureRounds(server, plan, 1);  // warm
  const std::vector<double> seconds = MeasureRounds(server, plan, flags.whole_rounds);
  return absl::StrFormat(R"("mode": "rounds", "latency": %s)", LatencyJson(seconds));
}

std::string MeasureSoak(const Flags& flags, Plan& plan) {
  SoakFlags soak;
  soak.target = flags.target;
  if (flags.connections > 0) soak.connections = flags.connections;
  soak.seconds = flags.duration_s;
  if (flags.rate > 0) soak.per_second = flags.rate;
  soak.server_pid = flags.server_pid;
  soak.seed = kSeed;
  return SoakJson(Soak(plan, soak), soak);
}

std::string MeasureWhat(const Flags& flags, Plan& plan, Connections& server) {
  if (flags.soak) return MeasureSoak(flags, plan);
  return flags.whole_rounds > 0 ? MeasureWholeRounds(flags, plan, server) : MeasureIngestAndSinks(flags, plan, server);
}

void Measure(const Flags& flags) {
  const Workload workload = Prepare(flags);
  Plan plan(workload, flags.chunk_bytes, flags.whole_rounds > 0 ? 1 : flags.rounds);
  const int connections = flags.connections > 0 && !flags.soak ? flags.connections : flags.streams;
  Connections server(flags.target, connections);
  const std::string header = Header(flags, plan, server);
  const std::string json = absl::StrCat("{", header, ", ", MeasureWhat(flags, plan, server), "}\n");
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
  using sparseagg::bench::Flags;
  CLI::App app(
      "Puts a server under load over real sockets, holds what it answers to the engine in this process bit for bit, "
      "and writes one JSON object. Exit status 1 if anything was wrong or refused.",
      "sparseagg-loadgen");
  Flags flags;
  CLI::Option* target = app.add_option("--target", flags.target, "HOST:PORT of the server");
  app.add_option("--workload", flags.workload, "A to G, of bench/workloads.cc")
      ->check(CLI::IsMember({"A", "B", "C", "D", "E", "F", "G"}))
      ->capture_default_str();
  app.add_option("--divide-clients", flags.divide_clients, "take fewer clients")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--numerics", flags.numerics, "canonical or fixed_point")
      ->check(CLI::IsMember({"canonical", "fixed_point"}))
      ->capture_default_str();
  app.add_option("--chunk-bytes", flags.chunk_bytes, "keys and values in one message")->capture_default_str();
  app.add_option("--streams", flags.streams, "submissions under way at once, without --rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--connections", flags.connections, "TCP connections; 0: as many as streams")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--rounds", flags.rounds, "rounds open at once, among which the clients are dealt out")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rate", flags.rate,
                 "submissions a second, begun on time whatever becomes of earlier ones; rounds stay open to the end")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--duration", flags.duration_s,
                 "with --rate: seconds, to the end of a pass over all clients; with --soak: to the end of a round")
      ->capture_default_str();
  app.add_option("--ramp", flags.ramp_s, "seconds over which the rate grows or the streams are started")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--whole-rounds", flags.whole_rounds,
                 "measure so many rounds, one after the other, from their creation to the last page of the result; all "
                 "clients of a round submit at once")
      ->check(CLI::NonNegativeNumber);
  app.add_flag(
      "--soak", flags.soak,
      "one round after the other, of good clients among bad ones: of the connections (200 unless --connections "
      "says otherwise) a quarter each is good, stalls, vanishes in mid-stream, and sends garbage; --rate bounds "
      "the good submissions a second (20)");
  app.add_option("--server-pid", flags.server_pid, "with --soak: process on this machine whose memory is sampled");
  app.add_option("--repetitions", flags.repetitions, "timed runs; medians are quoted")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--sink", flags.sinks,
                 "raw, typed or both: between runs, send the same to a server in a process of its own that drops "
                 "messages as they come, or parses and drops them")
      ->check(CLI::IsMember({"raw", "typed"}));
  app.add_flag("--allow-refusals", flags.allow_refusals, "count refused submissions instead of giving up");
  app.add_option("--out", flags.out, "JSON file to write, instead of standard output");
  app.add_option("--serve-sink", flags.serve_sink, "be such a server, until standard input ends")
      ->check(CLI::IsMember({"raw", "typed"}))
      ->excludes(target);
  CLI11_PARSE(app, argc, argv);
  try {
    if (!flags.serve_sink.empty()) return sparseagg::bench::ServeSink(sparseagg::bench::KindOf(flags.serve_sink));
    if (flags.target.empty()) throw std::runtime_error("--target is missing");
    sparseagg::bench::Measure(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sparseagg-loadgen: %s\n", error.what());
    return 1;
  }
  return 0;
}
