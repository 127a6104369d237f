// The HTTP gateway: the unary API, the status page and the probes; or metrics and probes on a port of their own.
#ifndef SPARSEAGG_SERVICE_GATEWAY_GATEWAY_H_
#define SPARSEAGG_SERVICE_GATEWAY_GATEWAY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/gateway/router.h"
#include "service/handlers/task_methods.h"
#include "service/net/tls.h"
#include "service/server_context.h"

namespace sparseagg::service {

struct HttpOptions {
  std::string address;  // HOST:PORT (port 0: a free one); empty: no gateway
  std::string origins;  // BrowserPolicy
  // Connections open at once, in all and from one address, which gets at most half of them; 0: no limit of its own.
  uint64_t max_connections = 1000;
  uint64_t max_connections_per_address = 256;
};

// A running gateway. One thread reads and writes all connections; the methods run on the worker pool.
//
// Life cycle: Start serves on return; Shutdown, or the destructor, ends it. Owned by Server. Thread-safe.
class Gateway {
 public:
  // `api` null: a gateway for `pages` alone, whose connections have no limit by address and give way at once.
  // `tls` null: plain HTTP. `on_refused`: as of Listener::Start. Everything is borrowed until Shutdown returns.
  // Errors: INVALID_ARGUMENT: a malformed address or origin; UNAVAILABLE if the address is in use or not permitted.
  static absl::StatusOr<std::unique_ptr<Gateway>> Start(const HttpOptions& options, ServerContext* server, Api* api,
                                                        const TlsCredentials* tls, Pages pages,
                                                        std::function<void(const char* reason)> on_refused);
  ~Gateway();  // Shutdown without grace

  // The address with the port in use.
  const std::string& address() const;
  uint64_t num_connections() const;

  // Accepts no more connections, ends idle ones and those whose peers are silent in the middle of a request or a
  // response (kDrainSilence), waits up to `grace` for the other calls, and ends what is left. Another call has no
  // effect.
  // Blocks: until all calls have ended.
  void Shutdown(absl::Duration grace);

 private:
  struct Impl;
  Gateway();

  std::unique_ptr<Impl> impl_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_GATEWAY_H_
