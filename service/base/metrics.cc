#include "service/base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/version.h"

namespace sparseagg::service {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

// Names of series in 0.1 and today. The old ones are also given until 0.3 (docs/compatibility.md).
constexpr std::pair<const char*, const char*> kOldNames[] = {
    {"sparseagg_inflight_bytes", "sparseagg_kept_bytes"},
    {"sparseagg_transit_bytes", "sparseagg_in_flight_bytes"},
    {"sparseagg_transit_limit_bytes", "sparseagg_in_flight_limit_bytes"},
    {"sparseagg_transit_refused_total", "sparseagg_in_flight_refused_total"},
    {"sparseagg_transit_waiting", "sparseagg_in_flight_waiting"},
};

// Bucket bounds in seconds, from the decoding of a small message to the merge of a large round.
const Histogram::BucketBoundaries& Buckets() {
  static const Histogram::BucketBoundaries buckets = {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2,
                                                      3e-2, 0.1,  0.3,  1,    3,    10,   30};
  return buckets;
}

// Returns: the name of the code in lower case, "resource_exhausted".
std::string ReasonOf(absl::StatusCode code) { return absl::AsciiStrToLower(absl::StatusCodeToString(code)); }

// Returns: the class of a status of HTTP, "2xx".
std::string StatusClass(int status) { return status == 0 ? "gone" : absl::StrCat(status / 100, "xx"); }

constexpr std::array<absl::string_view, 6> kTaskEvents = {"created",   "leased", "expired",
                                                          "completed", "failed", "cancelled"};

constexpr std::array<absl::string_view, 4> kTenantLimits = {"open_rounds", "uploads", "transfers",
                                                            "submissions_per_second"};

constexpr std::array<absl::string_view, 6> kResults = {"accepted", "duplicate", "stale", "invalid", "shed", "failed"};

// Returns: the label `result` of a submission that was refused with `status`.
absl::string_view RefusalResult(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return "invalid";
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return "shed";
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
      return "stale";
    default:
      return "failed";
  }
}

}  // namespace

struct Metrics::Impl {
  Impl() {
    for (const absl::string_view result : kResults) {
      submissions[std::string(result)] = &submission_family.Add({{"result", std::string(result)}});
    }
    for (const absl::string_view event : kTaskEvents) {
      task_events[std::string(event)] = &task_event_family.Add({{"event", std::string(event)}});
    }
    for (const absl::string_view name : kTenantLimits) {
      tenant_refusals[std::string(name)] = &tenant_refused_family.Add({{"limit", std::string(name)}});
    }
    for (const RoundStage stage : kAllStages) {
      stages[static_cast<size_t>(stage)] = &stage_family.Add({{"stage", std::string(Name(stage))}}, Buckets());
    }
    build_family.Add({{"version", kVersion}}).Set(1);
  }

  std::vector<prometheus::MetricFamily> Collect(const Gauges& now) {
    for (const Gauges::State& state : now.rounds) {
      rounds_family.Add({{"state", state.name}}).Set(static_cast<double>(state.number));
    }
    for (const Gauges::State& state : now.tasks) {
      tasks_family.Add({{"state", state.name}}).Set(static_cast<double>(state.number));
    }
    waiting_leases.Set(static_cast<double>(now.waiting_leases));
    task_bytes.Set(static_cast<double>(now.task_bytes));
    uploads.Set(static_cast<double>(now.uploads));
    connections.Set(static_cast<double>(now.connections));
    http_connections.Set(static_cast<double>(now.http_connections));
    in_flight.Set(static_cast<double>(now.in_flight_bytes));
    in_flight_limit.Set(static_cast<double>(now.in_flight_limit_bytes));
    in_flight_waiting.Set(static_cast<double>(now.in_flight_waiting));
    held.Set(static_cast<double>(now.kept_bytes));
    limit.Set(static_cast<double>(now.memory_limit_bytes));
    resident.Set(static_cast<double>(now.resident_bytes));
    process_limit.Set(static_cast<double>(now.process_memory_limit_bytes));
    dropped_log_lines.Set(static_cast<double>(now.dropped_log_lines));
    if (now.has_data) {
      data_family.Add({}).Set(static_cast<double>(now.data_bytes));
      data_available_family.Add({}).Set(static_cast<double>(now.data_available_bytes));
      refused_writes_family.Add({}).Set(static_cast<double>(now.refused_writes));
    }
    std::vector<prometheus::MetricFamily> families = registry.Collect();
    for (const auto& [old_name, name] : kOldNames) {
      const auto has_name = [name = name](const prometheus::MetricFamily& family) { return family.name == name; };
      prometheus::MetricFamily copy = *std::find_if(families.begin(), families.end(), has_name);
      copy.name = old_name;
      copy.help = absl::StrCat("Deprecated name of ", name, ".");
      families.push_back(std::move(copy));
    }
    return families;
  }

  prometheus::Registry registry;
  Family<Counter>& submission_family =
      BuildCounter().Name("sparseagg_submissions_total").Help("Submissions by result.").Register(registry);
  Family<Counter>& rejected_family =
      BuildCounter().Name("sparseagg_rejected_total").Help("Refused submissions by status code.").Register(registry);
  Family<Counter>& denied_family = BuildCounter()
                                       .Name("sparseagg_denied_total")
                                       .Help("Calls refused for lack of a credential or of permission, by status code.")
                                       .Register(registry);
  Counter& refused_connections = BuildCounter()
                                     .Name("sparseagg_connections_refused_total")
                                     .Help("Connections reset because too many were open.")
                                     .Register(registry)
                                     .Add({});
  Counter& ended_connections =
      BuildCounter()
          .Name("sparseagg_connections_ended_total")
          .Help(
              "Connections ended because their peers sent too many frames without messages, or read almost nothing "
              "while other calls waited for memory.")
          .Register(registry)
          .Add({});
  Family<Counter>& tenant_refused_family =
      BuildCounter()
          .Name("sparseagg_tenant_refused_total")
          .Help("Calls refused because their tenant had reached a limit of its own, by limit.")
          .Register(registry);
  Counter& in_flight_refused = BuildCounter()
                                   .Name("sparseagg_in_flight_refused_total")
                                   .Help("Calls refused for lack of in-flight memory.")
                                   .Register(registry)
                                   .Add({});
  Counter& withdrawn = BuildCounter()
                           .Name("sparseagg_submissions_withdrawn_total")
                           .Help("Accepted submissions that were taken out of their round again.")
                           .Register(registry)
                           .Add({});
  Counter& tuples = BuildCounter()
                        .Name("sparseagg_update_tuples_total")
                        .Help("(key, row) tuples of accepted submissions.")
                        .Register(registry)
                        .Add({});
  Counter& bytes = BuildCounter()
                       .Name("sparseagg_update_bytes_total")
                       .Help("Bytes of keys and values of accepted submissions.")
                       .Register(registry)
                       .Add({});
  Family<Counter>& task_event_family =
      BuildCounter().Name("sparseagg_task_events_total").Help("What happened to tasks.").Register(registry);
  Family<Counter>& http_request_family = BuildCounter()
                                             .Name("sparseagg_http_requests_total")
                                             .Help("Requests over HTTP by method, route and class of status.")
                                             .Register(registry);
  Family<Histogram>& http_time_family = BuildHistogram()
                                            .Name("sparseagg_http_request_seconds")
                                            .Help(
                                                "Time from the head of a request over HTTP to the end of its response, "
                                                "waits for tasks and rounds included.")
                                            .Register(registry);
  Counter& http_received_bytes = BuildCounter()
                                     .Name("sparseagg_http_received_body_bytes_total")
                                     .Help("Bytes of the bodies of requests over HTTP.")
                                     .Register(registry)
                                     .Add({});
  Counter& http_sent_bytes = BuildCounter()
                                 .Name("sparseagg_http_sent_body_bytes_total")
                                 .Help("Bytes of the bodies of responses over HTTP.")
                                 .Register(registry)
                                 .Add({});
  Family<Histogram>& stage_family = BuildHistogram()
                                        .Name("sparseagg_stage_seconds")
                                        .Help("Time of single operations by stage; for receive, the wait for a client.")
                                        .Register(registry);
  Histogram& finish = BuildHistogram()
                          .Name("sparseagg_round_finish_seconds")
                          .Help("Time from the close of a round to its end.")
                          .Register(registry)
                          .Add({}, Buckets());
  Family<Gauge>& rounds_family =
      BuildGauge().Name("sparseagg_rounds").Help("Rounds in the server by state.").Register(registry);
  Family<Gauge>& tasks_family =
      BuildGauge().Name("sparseagg_tasks").Help("Tasks in the server by state.").Register(registry);
  Gauge& waiting_leases = BuildGauge()
                              .Name("sparseagg_waiting_leases")
                              .Help("LeaseTask calls that wait for a task.")
                              .Register(registry)
                              .Add({});
  Gauge& task_bytes = BuildGauge()
                          .Name("sparseagg_task_bytes")
                          .Help("Memory that tasks take; part of sparseagg_kept_bytes.")
                          .Register(registry)
                          .Add({});
  Gauge& uploads =
      BuildGauge().Name("sparseagg_uploads").Help("Uploads begun but not committed.").Register(registry).Add({});
  Gauge& connections = BuildGauge().Name("sparseagg_connections").Help("Open connections.").Register(registry).Add({});
  Gauge& http_connections = BuildGauge()
                                .Name("sparseagg_http_connections")
                                .Help("Open connections of the HTTP gateway; part of sparseagg_connections.")
                                .Register(registry)
                                .Add({});
  Gauge& in_flight = BuildGauge()
                         .Name("sparseagg_in_flight_bytes")
                         .Help("In-flight memory: messages and pages between the wire and rounds.")
                         .Register(registry)
                         .Add({});
  Gauge& in_flight_limit = BuildGauge()
                               .Name("sparseagg_in_flight_limit_bytes")
                               .Help("Limit of sparseagg_in_flight_bytes; 0: no limit.")
                               .Register(registry)
                               .Add({});
  Gauge& in_flight_waiting = BuildGauge()
                                 .Name("sparseagg_in_flight_waiting")
                                 .Help("Calls that wait for in-flight memory.")
                                 .Register(registry)
                                 .Add({});
  Gauge& held = BuildGauge()
                    .Name("sparseagg_kept_bytes")
                    .Help("Memory that rounds keep or have reserved: uploads, submissions and results.")
                    .Register(registry)
                    .Add({});
  Gauge& limit = BuildGauge()
                     .Name("sparseagg_memory_limit_bytes")
                     .Help("Limit of sparseagg_kept_bytes; 0: no limit.")
                     .Register(registry)
                     .Add({});
  // The standard name of Prometheus's client libraries.
  Gauge& resident = BuildGauge()
                        .Name("process_resident_memory_bytes")
                        .Help("Resident memory size in bytes.")
                        .Register(registry)
                        .Add({});
  Gauge& process_limit = BuildGauge()
                             .Name("sparseagg_process_memory_limit_bytes")
                             .Help("Limit of process_resident_memory_bytes, the flag --memory-limit; 0: no limit.")
                             .Register(registry)
                             .Add({});
  Gauge& dropped_log_lines = BuildGauge()
                                 .Name("sparseagg_log_lines_dropped")
                                 .Help("Log lines dropped since the start because standard error was not read in time.")
                                 .Register(registry)
                                 .Add({});
  Family<Gauge>& data_family = BuildGauge()
                                   .Name("sparseagg_data_bytes")
                                   .Help("Disk space of all files in the data directory.")
                                   .Register(registry);
  Family<Gauge>& data_available_family = BuildGauge()
                                             .Name("sparseagg_data_available_bytes")
                                             .Help("Free space of the data directory's file system.")
                                             .Register(registry);
  Family<Gauge>& refused_writes_family = BuildGauge()
                                             .Name("sparseagg_data_writes_refused")
                                             .Help("Writes refused since the start because the disk was full.")
                                             .Register(registry);
  Family<Gauge>& build_family =
      BuildGauge().Name("sparseagg_build_info").Help("Always 1; the version is a label.").Register(registry);
  Family<Gauge>& engine_family =
      BuildGauge().Name("sparseagg_engine_info").Help("Always 1; engine and device are labels.").Register(registry);
  std::map<std::string, Counter*, std::less<>> submissions;      // never changed after construction
  std::map<std::string, Counter*, std::less<>> task_events;      // likewise
  std::map<std::string, Counter*, std::less<>> tenant_refusals;  // likewise
  std::array<Histogram*, kNumStages> stages;
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}

Metrics::~Metrics() = default;

void Metrics::CountSubmission(bool duplicate, uint64_t tuples, uint64_t bytes) {
  impl_->submissions.find(duplicate ? "duplicate" : "accepted")->second->Increment();
  if (duplicate) return;
  impl_->tuples.Increment(static_cast<double>(tuples));
  impl_->bytes.Increment(static_cast<double>(bytes));
}

void Metrics::CountWithdrawn(uint64_t number) { impl_->withdrawn.Increment(static_cast<double>(number)); }

void Metrics::CountRefused(const absl::Status& status) {
  impl_->submissions.find(std::string(RefusalResult(status)))->second->Increment();
  impl_->rejected_family.Add({{"reason", ReasonOf(status.code())}}).Increment();
}

void Metrics::CountDenied(const absl::Status& status) {
  impl_->denied_family.Add({{"reason", ReasonOf(status.code())}}).Increment();
}

void Metrics::ObserveStage(RoundStage stage, absl::Duration time) {
  impl_->stages[static_cast<size_t>(stage)]->Observe(absl::ToDoubleSeconds(time));
}

void Metrics::CountTasks(absl::string_view event, uint64_t number) {
  impl_->task_events.find(event)->second->Increment(static_cast<double>(number));
}

void Metrics::CountTenantRefusal(absl::string_view limit) { impl_->tenant_refusals.find(limit)->second->Increment(); }
void Metrics::CountRefusedConnection() { impl_->refused_connections.Increment(); }
void Metrics::CountEndedConnections(int number) { impl_->ended_connections.Increment(number); }
void Metrics::CountRefusedInFlight() { impl_->in_flight_refused.Increment(); }
void Metrics::ObserveFinish(absl::Duration time) { impl_->finish.Observe(absl::ToDoubleSeconds(time)); }

void Metrics::CountHttp(const HttpExchange& exchange) {
  impl_->http_request_family
      .Add({{"method", exchange.method}, {"route", exchange.route}, {"status", StatusClass(exchange.status)}})
      .Increment();
  impl_->http_time_family.Add({{"route", exchange.route}}, Buckets()).Observe(absl::ToDoubleSeconds(exchange.time));
  impl_->http_received_bytes.Increment(static_cast<double>(exchange.received_body_bytes));
  impl_->http_sent_bytes.Increment(static_cast<double>(exchange.sent_body_bytes));
}

void Metrics::SetEngine(const std::string& engine, const std::string& device) {
  impl_->engine_family.Add({{"engine", engine}, {"device", device}}).Set(1);
}

std::string Metrics::Text(const std::function<Gauges()>& gauges) const {
  return prometheus::TextSerializer().Serialize(impl_->Collect(gauges()));
}

}  // namespace sparseagg::service
