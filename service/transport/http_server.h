// A few pages of plain text over HTTP, for Prometheus and for probes.
#ifndef SPARSEAGG_SERVICE_TRANSPORT_HTTP_SERVER_H_
#define SPARSEAGG_SERVICE_TRANSPORT_HTTP_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sparseagg::service {

struct HttpPage {
  int status = 200;
  std::string text;
};

// By path, such as "/metrics". Each is called for each GET or HEAD, by several threads at once.
using HttpPages = std::map<std::string, std::function<HttpPage()>>;

// Serves its pages until it is destroyed; any other path is 404.
class HttpServer {
 public:
  // HOST:PORT, port 0 for any free one, an IPv6 host in brackets. INVALID_ARGUMENT: anything else. UNAVAILABLE: the
  // address cannot be listened on. UNIMPLEMENTED: built without the library (SPARSEAGG_METRICS=OFF).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, const HttpPages& pages);
  ~HttpServer();

  // With the port that was found.
  const std::string& address() const { return address_; }

 private:
  struct Impl;
  HttpServer();

  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TRANSPORT_HTTP_SERVER_H_
