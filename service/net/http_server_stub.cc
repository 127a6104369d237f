// HttpServer in a build without CivetWeb: Start always fails.
#include "service/net/http_server.h"

namespace sparseagg::service {

struct HttpServer::Impl {};

HttpServer::HttpServer() = default;
HttpServer::~HttpServer() = default;
absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string&, const HttpPages&) {
  return absl::UnimplementedError("this server was built without metrics and probes");
}

}  // namespace sparseagg::service
