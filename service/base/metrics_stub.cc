// Metrics in a build without prometheus-cpp: nothing is counted.
#include "service/base/metrics.h"

namespace sparseagg::service {

struct Metrics::Impl {};

Metrics::Metrics() = default;
Metrics::~Metrics() = default;
void Metrics::SetEngine(const std::string&, const std::string&) {}
void Metrics::CountSubmission(bool, uint64_t, uint64_t) {}
void Metrics::CountClipped(const ClipOutcome&) {}
void Metrics::CountWithdrawn(uint64_t) {}
void Metrics::CountRefused(const absl::Status&) {}
void Metrics::CountDenied(const absl::Status&) {}
void Metrics::ObserveStage(RoundStage, absl::Duration) {}
void Metrics::CountRefusedConnection() {}
void Metrics::CountEndedConnections(int) {}
void Metrics::CountRefusedInFlight() {}
void Metrics::CountTenantRefusal(absl::string_view) {}
void Metrics::CountTasks(absl::string_view, uint64_t) {}
void Metrics::CountHttp(const HttpExchange&) {}
void Metrics::ObserveStaleness(uint64_t) {}
void Metrics::CountCut(absl::string_view) {}
void Metrics::CountModelVersion(absl::string_view) {}
void Metrics::CountModelReads(uint64_t) {}
void Metrics::ObserveFinish(absl::Duration) {}
std::string Metrics::Text(const std::function<std::vector<GaugeValue>()>&) const {
  return "# This server was built without prometheus-cpp.\n";
}

}  // namespace sparseagg::service
