// What the server counts about itself, in Prometheus's terms. docs/operations.md lists the names.
#ifndef SPARSEAGG_SERVICE_BASE_METRICS_H_
#define SPARSEAGG_SERVICE_BASE_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/base/round_stage.h"

namespace sparseagg::service {

// What can be counted only at the moment that somebody looks.
struct Gauges {
  struct State {
    std::string name;  // "open", …
    uint64_t rounds = 0;
  };
  std::vector<State> rounds;
  uint64_t uploads = 0;
  uint64_t connections = 0;
  uint64_t kept_bytes = 0;
  uint64_t memory_limit_bytes = 0;  // of kept_bytes
  uint64_t in_flight_bytes = 0;
  uint64_t in_flight_limit_bytes = 0;
  uint64_t in_flight_waiting = 0;  // messages and pages
  uint64_t resident_bytes = 0;
  uint64_t process_memory_limit_bytes = 0;  // of resident_bytes
  uint64_t dropped_log_lines = 0;
};

// Labels have few values: never a round or a client, whose series would grow for ever. Thread-safe. Counting is a few
// atomic operations. Without the library (SPARSEAGG_METRICS=OFF) nothing is counted.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // What computes, for the label of sparseagg_engine_info.
  void SetEngine(const std::string& engine, const std::string& device);
  // A submission that counts, or that had been counted before.
  void CountSubmission(bool duplicate, uint64_t tuples, uint64_t bytes);
  // One that was refused.
  void CountRefused(const absl::Status& status);
  // One operation of a stage.
  void ObserveStage(RoundStage stage, absl::Duration time);
  // A connection that was one too many.
  void CountRefusedConnection();
  // Connections whose peers took next to nothing while others waited.
  void CountEndedConnections(int number);
  // A call for which there was no room in transit.
  void CountRefusedInFlight();
  // A round, from its close to its end.
  void ObserveFinish(absl::Duration time);

  // The whole page, in Prometheus's text format. `gauges` is called once, while nothing is locked.
  std::string Text(const std::function<Gauges()>& gauges) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_METRICS_H_
