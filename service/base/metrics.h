// The server's metrics for Prometheus. docs/operations.md lists their names.
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
#include "service/base/round_stage.h"

namespace sparseagg::service {

// Values that the server reads only when the metrics page is asked for.
struct Gauges {
  struct State {
    std::string name;  // "open", …
    uint64_t number = 0;
  };
  std::vector<State> rounds;
  std::vector<State> tasks;
  uint64_t waiting_leases = 0;
  uint64_t task_bytes = 0;  // part of kept_bytes
  uint64_t uploads = 0;
  uint64_t connections = 0;         // in all
  uint64_t http_connections = 0;    // of these
  uint64_t kept_bytes = 0;          // MemoryBudget
  uint64_t memory_limit_bytes = 0;  // of kept_bytes
  uint64_t in_flight_bytes = 0;     // InFlightMemory
  uint64_t in_flight_limit_bytes = 0;
  uint64_t in_flight_waiting = 0;  // calls in the queue
  uint64_t resident_bytes = 0;
  uint64_t process_memory_limit_bytes = 0;  // of resident_bytes
  uint64_t dropped_log_lines = 0;
  // Of a server with a data directory.
  bool has_data = false;
  uint64_t data_bytes = 0;
  uint64_t data_available_bytes = 0;  // in the file system
  uint64_t refused_writes = 0;
};

// A request over HTTP that is over.
struct HttpExchange {
  // Labels. Of few values: no word of the peer's, unless it was compared with known ones.
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
// Owned by ServerContext. Thread-safe. Cost: a few atomic operations per count; for CountHttp, lookups by label under a
// lock in addition.
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
  // Records the time from the close of a round to its end.
  void ObserveFinish(absl::Duration time);

  // Returns: the metrics page in Prometheus's text format. Calls `gauges` once, without a lock.
  std::string Text(const std::function<Gauges()>& gauges) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_METRICS_H_
