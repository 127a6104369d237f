// The server's metrics for Prometheus. docs/reference/metrics.md lists their names.
#ifndef SPARSEAGG_SERVICE_BASE_METRICS_H_
#define SPARSEAGG_SERVICE_BASE_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/spec/clip.h"
#include "service/base/round_stage.h"

namespace sparseagg::service {

// A value that the server reads only when the metrics page is asked for. Gauges of one name follow one another.
struct GaugeValue {
  const char* name;
  const char* help;
  uint64_t value = 0;
  std::string of;               // the value of `label`; empty: there is no label
  const char* label = "state";  // its name
};

// A request over HTTP that is over.
struct HttpExchange {
  // Labels of low cardinality; never raw client input.
  std::string method = "other";  // "GET", …
  std::string route = "none";    // the pattern of the path, "/v1/rounds/{round}"; "none": no route has this path
  int status = 0;                // 0: the peer went away before the response
  absl::Duration time = absl::ZeroDuration();
  uint64_t received_body_bytes = 0;
  uint64_t sent_body_bytes = 0;
};

// Counters, histograms and the page that Prometheus reads. Labels have few values: a label per round or client would
// make Prometheus's series grow for ever. A build without prometheus-cpp (SPARSEAGG_METRICS=OFF) counts nothing.
//
// Owned by ServerContext. Thread-safe. Cost: a few atomic operations per count, and for counts by label a lookup under
// a lock.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Sets the labels of sparseagg_engine_info.
  void SetEngine(const std::string& engine, const std::string& device);
  // Counts an accepted submission; `duplicate`: the repetition of an accepted one.
  void CountSubmission(bool duplicate, uint64_t tuples, uint64_t bytes);
  // Counts an accepted submission that a bound has changed.
  void CountClipped(const ClipOutcome& outcome);
  // Counts accepted submissions that were taken out of their round.
  void CountWithdrawn(uint64_t number);
  // Counts a refused submission.
  void CountRefused(const absl::Status& status);
  // Counts a call refused for lack of a credential or of permission.
  void CountDenied(const absl::Status& status);
  // Records the time of one operation of a stage.
  void ObserveStage(RoundStage stage, absl::Duration time);
  // Counts a connection reset by the listener.
  void CountRefusedConnection();
  // Counts connections that ConnectionTable::EndStuck has ended.
  void CountEndedConnections(int number);
  // Counts a call refused for lack of in-flight memory.
  void CountRefusedInFlight();
  // Counts a call refused because its tenant has reached a limit of its own. `limit`: open_rounds, uploads, transfers
  // or submissions_per_second.
  void CountTenantRefusal(absl::string_view limit);
  // Counts what happens to tasks. `event`: created, leased, expired (leases), completed, failed or cancelled.
  void CountTasks(absl::string_view event, uint64_t number);
  // Counts a request over HTTP, its time and its bytes.
  void CountHttp(const HttpExchange& exchange);
  // Records the staleness of a commit to a stream.
  void ObserveStaleness(uint64_t staleness);
  // Counts a version of a stream that was cut. `cause`: full, timer or call.
  void CountCut(absl::string_view cause);
  // Counts a version of a model, or an attempt to make one. `result`: applied, empty or refused.
  void CountModelVersion(absl::string_view result);
  // Counts rows that were read from models.
  void CountModelReads(uint64_t rows);
  // Records the time from the close of a round to its end.
  void ObserveFinish(absl::Duration time);

  // Returns: the metrics page in Prometheus's text format. Calls `gauges` once, without a lock.
  std::string Text(const std::function<std::vector<GaugeValue>()>& gauges) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_METRICS_H_
