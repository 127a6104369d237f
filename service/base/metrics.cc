#include "service/base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "service/version.h"

namespace sparseagg::service {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

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

// Returns: the label `result` of a submission that was refused with `status`.
const char* RefusalResult(const absl::Status& status) {
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
  // A series without events is 0 from the start, so that Prometheus sees its first one.
  Impl() {
    for (const char* result : {"stale", "invalid", "shed", "failed"}) {
      submissions.Add({{"result", result}});
    }
    for (const char* event : {"created", "leased", "expired", "completed", "failed", "cancelled"}) {
      task_events.Add({{"event", event}});
    }
    for (const char* bound : {"l2", "linf", "max_keys"}) {
      clipped.Add({{"bound", bound}});
    }
    for (const char* limit : {"open_rounds", "uploads", "transfers", "submissions_per_second"}) {
      tenant_refused.Add({{"limit", limit}});
    }
    for (const char* cause : {"full", "timer", "call"}) {
      cuts.Add({{"cause", cause}});
    }
    for (const char* result : {"applied", "empty", "refused"}) {
      model_versions.Add({{"result", result}});
    }
    for (const RoundStage stage : kAllStages) {
      stages[static_cast<size_t>(stage)] = &stage_times.Add({{"stage", std::string(Name(stage))}}, Buckets());
    }
    builds.Add({{"version", kVersion}}).Set(1);
  }

  Family<Counter>& Counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  Family<Gauge>& Gauges(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  Family<Histogram>& Histograms(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }

  prometheus::Registry registry;
  Family<Counter>& submissions = Counters("sparseagg_submissions_total", "Submissions by result.");
  Counter& accepted = submissions.Add({{"result", "accepted"}});
  Counter& duplicate = submissions.Add({{"result", "duplicate"}});
  Family<Counter>& rejected = Counters("sparseagg_rejected_total", "Refused submissions by status code.");
  Family<Counter>& denied =
      Counters("sparseagg_denied_total", "Calls refused for lack of a credential or of permission, by status code.");
  Counter& refused_connections =
      Counters("sparseagg_connections_refused_total", "Connections reset because too many were open.").Add({});
  Counter& ended_connections =
      Counters("sparseagg_connections_ended_total",
               "Connections ended because their peers sent too many frames without messages, or read almost nothing "
               "while other calls waited for memory.")
          .Add({});
  Family<Counter>& tenant_refused = Counters(
      "sparseagg_tenant_refused_total", "Calls refused because their tenant had reached a limit of its own, by limit.");
  Counter& in_flight_refused =
      Counters("sparseagg_in_flight_refused_total", "Calls refused for lack of in-flight memory.").Add({});
  Counter& withdrawn = Counters("sparseagg_submissions_withdrawn_total",
                                "Accepted submissions that were taken out of their round again.")
                           .Add({});
  Family<Counter>& clipped = Counters("sparseagg_submissions_clipped_total",
                                      "Accepted submissions that a bound of their round has changed, by bound.");
  Counter& tuples = Counters("sparseagg_update_tuples_total", "(key, row) tuples of accepted submissions.").Add({});
  Counter& bytes =
      Counters("sparseagg_update_bytes_total", "Bytes of keys and values of accepted submissions.").Add({});
  Family<Counter>& task_events = Counters("sparseagg_task_events_total", "What happened to tasks.");
  Family<Counter>& http_requests =
      Counters("sparseagg_http_requests_total", "Requests over HTTP by method, route and class of status.");
  Family<Histogram>& http_times = Histograms("sparseagg_http_request_seconds",
                                             "Time from the head of a request over HTTP to the end of its response, "
                                             "waits for tasks and rounds included.");
  Counter& http_received =
      Counters("sparseagg_http_received_body_bytes_total", "Bytes of the bodies of requests over HTTP.").Add({});
  Counter& http_sent =
      Counters("sparseagg_http_sent_body_bytes_total", "Bytes of the bodies of responses over HTTP.").Add({});
  Family<Histogram>& stage_times =
      Histograms("sparseagg_stage_seconds", "Time of single operations by stage; for receive, the wait for a client.");
  Histogram& staleness = Histograms("sparseagg_stream_staleness",
                                    "Staleness of commits to streams: versions between that which an update was "
                                    "computed from and that before its own.")
                             .Add({}, Histogram::BucketBoundaries{0, 1, 2, 4, 8, 16, 32, 64, 128});
  Family<Counter>& cuts = Counters("sparseagg_stream_cuts_total", "Versions of streams that were cut, by cause.");
  Family<Counter>& model_versions =
      Counters("sparseagg_model_versions_total", "Versions of models, and attempts to make one, by result.");
  Counter& model_reads = Counters("sparseagg_model_read_rows_total", "Rows that were read from models.").Add({});
  Histogram& finish =
      Histograms("sparseagg_round_finish_seconds", "Time from the close of a round to its end.").Add({}, Buckets());
  Family<Gauge>& builds = Gauges("sparseagg_build_info", "Always 1; the version is a label.");
  Family<Gauge>& engines = Gauges("sparseagg_engine_info", "Always 1; engine and device are labels.");
  std::array<Histogram*, kNumStages> stages;
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}

Metrics::~Metrics() = default;

void Metrics::CountSubmission(bool duplicate, uint64_t tuples, uint64_t bytes) {
  (duplicate ? impl_->duplicate : impl_->accepted).Increment();
  if (duplicate) return;
  impl_->tuples.Increment(static_cast<double>(tuples));
  impl_->bytes.Increment(static_cast<double>(bytes));
}

void Metrics::CountWithdrawn(uint64_t number) { impl_->withdrawn.Increment(static_cast<double>(number)); }

void Metrics::CountClipped(const ClipOutcome& outcome) {
  if (outcome.l2()) impl_->clipped.Add({{"bound", "l2"}}).Increment();
  if (outcome.linf) impl_->clipped.Add({{"bound", "linf"}}).Increment();
  if (outcome.max_keys) impl_->clipped.Add({{"bound", "max_keys"}}).Increment();
}

void Metrics::CountRefused(const absl::Status& status) {
  impl_->submissions.Add({{"result", RefusalResult(status)}}).Increment();
  impl_->rejected.Add({{"reason", ReasonOf(status.code())}}).Increment();
}

void Metrics::CountDenied(const absl::Status& status) {
  impl_->denied.Add({{"reason", ReasonOf(status.code())}}).Increment();
}

void Metrics::ObserveStage(RoundStage stage, absl::Duration time) {
  impl_->stages[static_cast<size_t>(stage)]->Observe(absl::ToDoubleSeconds(time));
}

void Metrics::CountTasks(absl::string_view event, uint64_t number) {
  impl_->task_events.Add({{"event", std::string(event)}}).Increment(static_cast<double>(number));
}

void Metrics::CountTenantRefusal(absl::string_view limit) {
  impl_->tenant_refused.Add({{"limit", std::string(limit)}}).Increment();
}

void Metrics::CountRefusedConnection() { impl_->refused_connections.Increment(); }
void Metrics::CountEndedConnections(int number) { impl_->ended_connections.Increment(number); }
void Metrics::CountRefusedInFlight() { impl_->in_flight_refused.Increment(); }
void Metrics::CountModelVersion(absl::string_view result) {
  impl_->model_versions.Add({{"result", std::string(result)}}).Increment();
}

void Metrics::CountModelReads(uint64_t rows) { impl_->model_reads.Increment(static_cast<double>(rows)); }

void Metrics::ObserveFinish(absl::Duration time) { impl_->finish.Observe(absl::ToDoubleSeconds(time)); }

void Metrics::ObserveStaleness(uint64_t staleness) { impl_->staleness.Observe(static_cast<double>(staleness)); }

void Metrics::CountCut(absl::string_view cause) { impl_->cuts.Add({{"cause", std::string(cause)}}).Increment(); }

void Metrics::CountHttp(const HttpExchange& exchange) {
  impl_->http_requests
      .Add({{"method", exchange.method}, {"route", exchange.route}, {"status", StatusClass(exchange.status)}})
      .Increment();
  impl_->http_times.Add({{"route", exchange.route}}, Buckets()).Observe(absl::ToDoubleSeconds(exchange.time));
  impl_->http_received.Increment(static_cast<double>(exchange.received_body_bytes));
  impl_->http_sent.Increment(static_cast<double>(exchange.sent_body_bytes));
}

void Metrics::SetEngine(const std::string& engine, const std::string& device) {
  impl_->engines.Add({{"engine", engine}, {"device", device}}).Set(1);
}

std::string Metrics::Text(const std::function<std::vector<GaugeValue>()>& gauges) const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  for (const GaugeValue& gauge : gauges()) {
    if (families.back().name != gauge.name) {
      families.push_back({gauge.name, gauge.help, prometheus::MetricType::Gauge, {}});
    }
    prometheus::ClientMetric& metric = families.back().metric.emplace_back();
    if (!gauge.of.empty()) metric.label.push_back({gauge.label, gauge.of});
    metric.gauge.value = static_cast<double>(gauge.value);
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace sparseagg::service
