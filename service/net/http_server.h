// An HTTP server for a few pages of plain text: metrics and probes.
#ifndef SPARSEAGG_SERVICE_NET_HTTP_SERVER_H_
#define SPARSEAGG_SERVICE_NET_HTTP_SERVER_H_

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

// Pages by path, such as "/metrics". A page function runs for each GET or HEAD, on several threads at once.
using HttpPages = std::map<std::string, std::function<HttpPage()>>;

// A CivetWeb server that serves its pages from Start until it is destroyed. Any other path is 404. Owned by Server.
class HttpServer {
 public:
  // Listens on `address`: HOST:PORT, port 0 for a free one, an IPv6 host in brackets.
  // Errors: INVALID_ARGUMENT for any other address; UNAVAILABLE if the address is in use or not permitted;
  // UNIMPLEMENTED in a build without CivetWeb (SPARSEAGG_METRICS=OFF).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, const HttpPages& pages);
  ~HttpServer();

  // The address with the port in use.
  const std::string& address() const { return address_; }

 private:
  struct Impl;
  HttpServer();

  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_NET_HTTP_SERVER_H_
