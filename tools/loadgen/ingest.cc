#include "tools/loadgen/ingest.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/loadgen/load.h"
#include "tools/loadgen/report.h"
#include "tools/loadgen/sink.h"

namespace sparseagg::bench {
namespace {

// One sink: its process, the connections to it, and the measured times.
struct Sink {
  Sink(const std::string& the_name, int connections)
      : name(the_name), process(KindOf(the_name)), channels(process.address(), connections) {}
  std::string name;
  SinkProcess process;
  Connections channels;
  std::vector<double> seconds;
};

// The measurements of one wire form in all repetitions.
struct Measured {
  std::vector<double> ingest_s;
  std::vector<double> tail_s;
  std::vector<double> total_s;
  Outcome all;           // sums; `seconds` is not set
  bool verified = true;  // false after a refusal

  void Add(const IngestRun& run) {
    ingest_s.push_back(run.outcome.seconds);
    tail_s.push_back(run.tail_s);
    total_s.push_back(run.total_s);
    all.bytes += run.outcome.bytes;
    all.tuples += run.outcome.tuples;
    all.latency_s.insert(all.latency_s.end(), run.outcome.latency_s.begin(), run.outcome.latency_s.end());
    for (const auto& [code, refusals] : run.outcome.refused) {
      Refusals& sum = all.refused[code];
      if (sum.count == 0) sum.first_message = refusals.first_message;
      sum.count += refusals.count;
    }
  }

  // Returns: the mean of a repetition per second of the median repetition.
  double PerSecond(uint64_t sum) const { return PerSecond(sum, ingest_s); }
  double PerSecondWithMerge(uint64_t sum) const { return PerSecond(sum, total_s); }

 private:
  static double PerSecond(uint64_t sum, const std::vector<double>& seconds) {
    return static_cast<double>(sum) / static_cast<double>(seconds.size()) / Median(seconds);
  }
};

// JSON has no number for a division by zero: null.
std::string RatioJson(double above, double below) {
  return below > 0 ? absl::StrFormat("%.4f", above / below) : "null";
}

void FailOnRefusals(const Flags& flags, const Outcome& outcome) {
  if (flags.allow_refusals || outcome.refused.empty()) return;
  const auto& [code, refusals] = *outcome.refused.begin();
  throw std::runtime_error(
      absl::StrCat(refusals.count, " submissions were refused with code ", code, ": ", refusals.first_message));
}

double BytesPerTuple(const Traffic& traffic) {
  return static_cast<double>(traffic.bytes) / static_cast<double>(traffic.tuples);
}

std::string SinksJson(const std::vector<std::unique_ptr<Sink>>& sinks, const Plan& plan, const Measured& measured) {
  std::vector<std::string> json;
  for (const auto& sink : sinks) {
    const double bytes_per_s = static_cast<double>(plan.traffic().bytes) / Median(sink->seconds);
    json.push_back(absl::StrFormat(
        R"("%s": {"seconds": %s, "bytes_per_s": %.0f, "share": %.4f, "share_with_merge": %.4f})", sink->name,
        NumbersJson(sink->seconds), bytes_per_s, measured.PerSecond(measured.all.bytes) / bytes_per_s,
        measured.PerSecondWithMerge(measured.all.bytes) / bytes_per_s));
  }
  return absl::StrCat("{", absl::StrJoin(json, ", "), "}");
}

std::string PlainJson(const Plan& plain, const Measured& of_plain, const Measured& measured) {
  const double tuples_per_s = of_plain.PerSecond(of_plain.all.tuples);
  return absl::StrFormat(
      R"(, "plain": {"bytes": %d, "bytes_per_tuple": %.3f, "ingest_seconds": %s, "bytes_per_s": %.0f, )"
      R"("tuples_per_s": %.0f, "tuples_per_s_against_it": %s, "refused": %s})",
      plain.traffic().bytes, BytesPerTuple(plain.traffic()), NumbersJson(of_plain.ingest_s),
      of_plain.PerSecond(of_plain.all.bytes), tuples_per_s,
      RatioJson(measured.PerSecond(measured.all.tuples), tuples_per_s), RefusedJson(of_plain.all.refused));
}

// Verifies one run, which also warms the server.
void VerifyFirst(const Flags& flags, Plan& plan, Connections& server, const Pacing& pacing, Measured& measured) {
  const IngestRun run = MeasureIngest(server, plan, pacing, 0, /*verify=*/true);
  FailOnRefusals(flags, run.outcome);
  measured.verified = run.verified;
}

// With a rate, VerifyFirst did not run, so that every run is verified.
void TakeTurn(const Flags& flags, Plan& plan, Connections& server, const Pacing& pacing, Measured& measured) {
  const bool verify = flags.rate != 0;
  const IngestRun run = MeasureIngest(server, plan, pacing, flags.duration_s, verify);
  measured.Add(run);
  FailOnRefusals(flags, measured.all);
  measured.verified = measured.verified && (verify ? run.verified : run.outcome.refused.empty());
}

}  // namespace

std::string MeasureIngestAndSinks(const Flags& flags, Plan& plan, Connections& server) {
  const Pacing pacing{flags.streams, flags.rate, flags.ramp_s};
  std::vector<std::unique_ptr<Sink>> sinks;
  for (const std::string& name : flags.sinks) {
    sinks.push_back(std::make_unique<Sink>(name, static_cast<int>(server.size())));
    Run(sinks.back()->channels, plan.SinkJobs(), pacing);  // warm
  }
  std::optional<Plan> plain;
  if (flags.against_plain) plain.emplace(plan.workload(), flags.chunk_bytes, flags.rounds);
  Measured measured;
  Measured of_plain;
  if (flags.rate == 0) VerifyFirst(flags, plan, server, pacing, measured);
  if (plain) VerifyFirst(flags, *plain, server, pacing, of_plain);
  for (int i = 0; i < flags.repetitions; ++i) {
    for (const auto& sink : sinks) {
      const Outcome outcome = Run(sink->channels, plan.SinkJobs(), pacing);
      if (!outcome.refused.empty()) throw std::runtime_error("the sink refused a submission");
      sink->seconds.push_back(outcome.seconds);
    }
    TakeTurn(flags, plan, server, pacing, measured);
    if (plain) TakeTurn(flags, *plain, server, pacing, of_plain);
  }
  return absl::StrFormat(
      R"("mode": "ingest", "verified": %s, "streams": %d, "rounds": %d, "rate_per_s": %g, "ramp_s": %g, )"
      R"("bytes_per_tuple": %.3f, "ingest_seconds": %s, "tail_seconds": %s, "total_seconds": %s, )"
      R"("bytes_per_s": %.0f, "tuples_per_s": %.0f, )"
      R"("tail_share": %.4f, "submissions_per_s": %.1f, "latency": %s, "refused": %s, "sinks": %s%s)",
      measured.verified && of_plain.verified ? "true" : "false", flags.streams, plan.num_rounds(), flags.rate,
      flags.ramp_s, BytesPerTuple(plan.traffic()), NumbersJson(measured.ingest_s), NumbersJson(measured.tail_s),
      NumbersJson(measured.total_s), measured.PerSecond(measured.all.bytes), measured.PerSecond(measured.all.tuples),
      Median(measured.tail_s) / Median(measured.ingest_s), measured.PerSecond(measured.all.latency_s.size()),
      LatencyJson(measured.all.latency_s), RefusedJson(measured.all.refused), SinksJson(sinks, plan, measured),
      plain ? PlainJson(*plain, of_plain, measured) : "");
}

}  // namespace sparseagg::bench
