// Without prometheus-cpp.
#include "service/http_server.h"
#include "service/metrics.h"

namespace sparseagg::service {

struct Metrics::Impl {};
struct HttpServer::Impl {};

Metrics::Metrics() = default;
Metrics::~Metrics() = default;
void Metrics::SetEngine(const std::string&, const std::string&) {}
void Metrics::CountSubmission(bool, uint64_t, uint64_t) {}
void Metrics::CountRefused(const absl::Status&) {}
void Metrics::ObserveStage(Stage, absl::Duration) {}
void Metrics::CountRefusedConnection() {}
void Metrics::CountEndedConnections(int) {}
void Metrics::CountRefusedInTransit() {}
void Metrics::ObserveFinish(absl::Duration) {}
std::string Metrics::Text(const std::function<Gauges()>&) const { return ""; }

HttpServer::HttpServer() = default;
HttpServer::~HttpServer() = default;
absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string&, const HttpPages&) {
  return absl::UnimplementedError("this server was built without metrics");
}

}  // namespace sparseagg::service
