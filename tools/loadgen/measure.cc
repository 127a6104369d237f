#include "tools/loadgen/measure.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/common/machine.h"

namespace sparseagg::bench {

double Percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  const size_t index = std::clamp<size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

std::string NumbersJson(const std::vector<double>& values) {
  const auto format = [](std::string* out, double value) { absl::StrAppendFormat(out, "%.6f", value); };
  return absl::StrCat("[", absl::StrJoin(values, ", ", format), "]");
}

std::string LatencyJson(const std::vector<double>& seconds) {
  return absl::StrFormat(R"({"count": %d, "p50_ms": %.3f, "p90_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f})",
                         seconds.size(), 1e3 * Percentile(seconds, 0.5), 1e3 * Percentile(seconds, 0.9),
                         1e3 * Percentile(seconds, 0.99), 1e3 * Percentile(seconds, 1));
}

std::string RefusedJson(const std::map<int, Refusals>& refused) {
  const auto format = [](std::string* out, const auto& entry) {
    absl::StrAppendFormat(out, R"({"code": %d, "count": %d, "first_message": %s})", entry.first, entry.second.count,
                          StringJson(entry.second.first_message));
  };
  return absl::StrCat("[", absl::StrJoin(refused, ", ", format), "]");
}

std::string StringJson(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

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

namespace {

template <typename T>
void Append(const std::vector<T>& numbers, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

// Returns: the clients from `first` on, `count` at the most, without the round.
v1::SubmitBatchRequest MakeBatch(const Workload& workload, size_t first, size_t count) {
  v1::SubmitBatchRequest batch;
  batch.set_submission_id("s");
  v1::TensorSlice* const slice = batch.add_slices();
  slice->set_tensor(workload.spec.name);
  const bool is_narrow = HasNarrowKeys(workload.spec);
  slice->set_key_encoding(is_narrow ? v1::KEY_ENCODING_U32 : v1::KEY_ENCODING_U64);
  slice->set_value_encoding(v1::VALUE_ENCODING_FLOAT32);
  std::vector<uint32_t> num_keys;
  const size_t end = std::min(first + count, workload.clients.size());
  for (size_t k = first; k < end; ++k) {
    const ClientArrays& client = workload.clients[k];
    absl::StrAppend(batch.mutable_client_ids(), k == first ? "" : "\n", ClientId(k));
    Append(client.narrow_keys, slice->mutable_keys());
    Append(client.wide_keys, slice->mutable_keys());
    Append(client.values, slice->mutable_values());
    num_keys.push_back(static_cast<uint32_t>(std::max(client.narrow_keys.size(), client.wide_keys.size())));
  }
  Append(num_keys, batch.mutable_num_keys());
  return batch;
}

// Sends all batches from `streams` threads. Returns: the seconds until the last answer.
double Send(Connections& server, int streams, const std::vector<v1::SubmitBatchRequest>& batches) {
  std::atomic<size_t> next = 0;
  std::vector<std::string> errors(static_cast<size_t>(streams));
  const double begin = Now();
  std::vector<std::thread> threads;
  for (size_t lane = 0; lane < errors.size(); ++lane) {
    threads.emplace_back([&, lane] {
      const auto stub = v1::Aggregation::NewStub(server.channel(lane));
      for (size_t i = next++; i < batches.size() && errors[lane].empty(); i = next++) {
        grpc::ClientContext context;
        v1::SubmitBatchResponse response;
        const grpc::Status status = stub->SubmitBatch(&context, batches[i], &response);
        if (!status.ok()) {
          errors[lane] = absl::StrCat("code ", status.error_code(), ": ", status.error_message());
        } else if (response.refusals_size() > 0) {
          errors[lane] = absl::StrCat("client ", response.refusals(0).client_id(), ": ", response.refusals(0).reason());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = Now() - begin;
  for (const std::string& error : errors) {
    if (!error.empty()) throw std::runtime_error("a batch was refused with " + error);
  }
  return seconds;
}

}  // namespace

std::string MeasureBatches(const Flags& flags, Plan& plan, Connections& server) {
  const Workload& workload = plan.workload();
  std::vector<v1::SubmitBatchRequest> batches;
  for (size_t first = 0; first < workload.clients.size(); first += flags.batch) {
    batches.push_back(MakeBatch(workload, first, flags.batch));
  }
  Rounds rounds(server, workload.spec);
  std::vector<double> seconds;
  for (int repetition = -1; repetition < flags.repetitions; ++repetition) {  // the first one warms the server
    const std::string name = rounds.Create();
    for (v1::SubmitBatchRequest& batch : batches) batch.set_round(name);
    const double taken = Send(server, flags.streams, batches);
    if (repetition >= 0) seconds.push_back(taken);
    rounds.Close(name);
    const v1::Round ended = rounds.AwaitDone(name);
    if (ended.num_submissions() != workload.clients.size()) {
      throw std::runtime_error(absl::StrCat(name, " counted ", ended.num_submissions(), " submissions"));
    }
    plan.Verify(0, name, rounds.Read(name));
    rounds.Delete(name);
  }
  return absl::StrFormat(R"("mode": "batches", "batch": %d, "streams": %d, "seconds": %s, "submissions_per_s": %.0f, )"
                         R"("tuples_per_s": %.0f, "verified": true)",
                         flags.batch, flags.streams, NumbersJson(seconds),
                         static_cast<double>(workload.clients.size()) / Median(seconds),
                         static_cast<double>(workload.num_tuples) / Median(seconds));
}

}  // namespace sparseagg::bench
