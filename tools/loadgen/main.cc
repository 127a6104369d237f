// sparseagg-loadgen: puts a server under load, verifies its results, and compares it with bare gRPC.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/common/machine.h"
#include "bench/common/workloads.h"
#include "service/grpc/grpc_options.h"
#include "service/version.h"
#include "tools/loadgen/measure.h"
#include "tools/loadgen/rounds.h"
#include "tools/loadgen/sink.h"
#include "tools/loadgen/soak.h"

namespace sparseagg::bench {
namespace {

constexpr uint64_t kSeed = 1;

Workload Prepare(const Flags& flags) {
  Workload workload = MakeWorkload(flags.workload, kSeed, flags.divide_clients);
  if (flags.split > 0) SplitClients(workload, flags.split);
  if (flags.numerics == "fixed_point") {
    AggregationSpec& aggregation = workload.spec.aggregation;
    aggregation.numerics = Numerics::kFixedPoint;
    aggregation.value_bound = 1.0;
    aggregation.max_submissions = workload.clients.size();
  }
  if (flags.values == "float16") RoundValuesToFloat16(workload);
  return workload;
}

int NumConnections(const Flags& flags) {
  if (flags.connections > 0) return flags.connections;
  return flags.soak ? SoakFlags{}.connections : flags.streams;
}

std::string Header(const Flags& flags, const Plan& plan, Connections& server) {
  const v1::ServerInfo info = Rounds(server, plan.workload().spec).Info();
  return absl::StrFormat(
      R"("date": "%s", "cpu": %s, "server": %s, "engine": %s, "seed": %d, "workload": "%s", "description": %s, )"
      R"("numerics": "%s", "keys": "%s", "values": "%s", "clients": %d, "tuples": %d, "bytes": %d, )"
      R"("chunk_bytes": %d, "connections": %d)",
      Today(), StringJson(CpuName()), StringJson(info.version()), StringJson(info.engine_description()), kSeed,
      plan.workload().name, StringJson(plan.workload().description), flags.numerics, flags.keys, flags.values,
      plan.traffic().submissions.size(), plan.traffic().tuples, plan.traffic().bytes, flags.chunk_bytes,
      NumConnections(flags));
}

std::string MeasureWholeRounds(const Flags& flags, Plan& plan, Connections& server) {
  MeasureRounds(server, plan, 1);  // warm
  const std::vector<double> seconds = MeasureRounds(server, plan, flags.whole_rounds);
  return absl::StrFormat(R"("mode": "rounds", "verified": true, "latency": %s)", LatencyJson(seconds));
}

std::string MeasureSoak(const Flags& flags, Plan& plan) {
  SoakFlags soak;
  soak.target = flags.target;
  soak.connections = NumConnections(flags);
  soak.seconds = flags.duration_s;
  if (flags.rate > 0) soak.per_second = flags.rate;
  soak.server_pid = flags.server_pid;
  soak.seed = kSeed;
  soak.silence_s = flags.silence_s;
  return SoakJson(Soak(plan, soak), soak);
}

std::string MeasureWhat(const Flags& flags, Plan& plan, Connections& server) {
  if (flags.soak) return MeasureSoak(flags, plan);
  if (flags.batch > 0) return MeasureBatches(flags, plan, server);
  return flags.whole_rounds > 0 ? MeasureWholeRounds(flags, plan, server) : MeasureIngestAndSinks(flags, plan, server);
}

void Measure(const Flags& flags) {
  const Workload workload = Prepare(flags);
  const WireForm form{flags.keys == "packed", flags.values == "float16"};
  Plan plan(workload, flags.chunk_bytes, flags.whole_rounds > 0 ? 1 : flags.rounds, form);
  Connections server(flags.target, flags.soak ? 1 : NumConnections(flags), flags.silence_s,
                     flags.access);  // the soak opens its own connections
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
  sparseagg::service::DisableMutexDeadlockDetection();
  CLI::App app(
      "Puts a server under load over real sockets, compares its results bit for bit with the engine in this process, "
      "and writes one JSON object. The exit status is 1 for a wrong result, or a refusal without --allow-refusals.",
      "sparseagg-loadgen");
  app.set_version_flag("--version", std::string("sparseagg-loadgen ") + sparseagg::service::kVersion);
  Flags flags;
  CLI::Option* target = app.add_option("--target", flags.target, "HOST:PORT of the server");
  CLI::Option* tls_ca = app.add_option("--tls-ca", flags.access.tls_ca, "use TLS: PEM file of the server's authority");
  app.add_option("--token-file", flags.access.token_file, "file with the bearer token")->needs(tls_ca);
  app.add_option("--workload", flags.workload, "A to H, see bench/common/workloads.cc")
      ->check(CLI::IsMember({"A", "B", "C", "D", "E", "F", "G", "H"}))
      ->capture_default_str();
  app.add_option("--divide-clients", flags.divide_clients, "divide the number of clients by this")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--split", flags.split,
                 "make several clients of each one, with so many tuples each; not for workload H")
      ->check(CLI::PositiveNumber);
  app.add_option("--numerics", flags.numerics, "canonical or fixed_point")
      ->check(CLI::IsMember({"canonical", "fixed_point"}))
      ->capture_default_str();
  app.add_option("--keys", flags.keys,
                 "plain, or packed (DELTA_BITPACKED), which needs sorted keys: not for workload D")
      ->check(CLI::IsMember({"plain", "packed"}))
      ->capture_default_str();
  app.add_option("--values", flags.values, "float32, or float16: rounds the values of the workload first")
      ->check(CLI::IsMember({"float32", "float16"}))
      ->capture_default_str();
  CLI::Option* against_plain =
      app.add_flag("--against-plain", flags.against_plain,
                   "between runs, also send the same tuples with plain keys and float32 values");
  app.add_option("--chunk-bytes", flags.chunk_bytes, "encoded keys and values per message")->capture_default_str();
  app.add_option("--streams", flags.streams, "concurrent submissions, without --rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--connections", flags.connections, "TCP connections; 0: as many as streams")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--rounds", flags.rounds, "open rounds; the clients are divided among them")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI::Option* rate =
      app.add_option(
             "--rate", flags.rate,
             "submissions per second, each started on time even if earlier ones are late; rounds stay open to the end")
          ->check(CLI::NonNegativeNumber);
  app.add_option("--duration", flags.duration_s,
                 "seconds; with --rate completes the last pass over all clients, with --soak the last rounds")
      ->capture_default_str();
  app.add_option("--ramp", flags.ramp_s, "seconds over which the rate grows from 0, or the streams are started")
      ->check(CLI::NonNegativeNumber);
  CLI::Option* whole_rounds = app.add_option("--whole-rounds", flags.whole_rounds,
                                             "measure this many rounds, one after the other, each from its creation to "
                                             "the last page of the result; all "
                                             "clients submit at once")
                                  ->check(CLI::NonNegativeNumber);
  CLI::Option* soak = app.add_flag(
      "--soak", flags.soak,
      "run rounds with good clients among bad ones: of the connections (default 200) a quarter each is good, stalls, "
      "disappears in mid-stream, and sends garbage; --rate limits the good submissions per second (default 20)");
  app.add_option("--batch", flags.batch,
                 "clients in one call: measures submissions in batches, with plain keys and values")
      ->check(CLI::Range(1, 16384))
      ->excludes(rate)
      ->excludes(whole_rounds)
      ->excludes(soak)
      ->excludes(against_plain);
  app.add_option("--server-pid", flags.server_pid, "with --soak: process on this machine whose memory to sample");
  app.add_option("--repetitions", flags.repetitions, "timed runs; the report has their medians")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option(
         "--sink", flags.sinks,
         "raw, typed or both: between runs, also send to a gRPC server in another process that drops the bytes of "
         "messages (raw), or parses and drops them (typed)")
      ->check(CLI::IsMember({"raw", "typed"}))
      ->excludes(rate);
  app.add_option(
         "--silence", flags.silence_s,
         "seconds without data from the server before a keepalive ping, and from the ping to the failure of the call")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag(
         "--allow-refusals", flags.allow_refusals,
         "count refused submissions instead of failing; rounds must still count exactly the acknowledged submissions, "
         "but after a refusal not every result is compared, and \"verified\" is false")
      ->excludes(whole_rounds)
      ->excludes(soak);
  app.add_option("--out", flags.out, "JSON file to write, instead of standard output");
  app.add_option("--serve-sink", flags.serve_sink, "run as the server of --sink, until standard input ends")
      ->check(CLI::IsMember({"raw", "typed"}))
      ->excludes(target);
  tls_ca->excludes(soak);  // its bad clients have none
  against_plain->excludes(whole_rounds)->excludes(soak);
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
