// The server: rounds, their gRPC service, health, reflection.
#ifndef SPARSEAGG_SERVICE_SERVER_H_
#define SPARSEAGG_SERVICE_SERVER_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "host/engine.h"
#include "service/base/clock.h"
#include "service/base/limits.h"
#include "service/base/metrics.h"
#include "service/rounds/registry.h"
#include "service/server_context.h"
#include "service/transport/http_server.h"
#include "service/transport/listener.h"

namespace sparseagg::service {

struct ServerOptions {
  std::string grpc_address = "127.0.0.1:8001";  // port 0: any free one; or unix:PATH
  bool insecure = false;                        // allows addresses that other machines can reach
  std::string metrics_address;                  // HOST:PORT, port 0: any free one; empty: none
  bool metrics_optional = false;                // serves all the same if that address is taken
  int num_threads = 1;                          // of the worker pool
  Limits limits;
};

// Thread-safe.
class Server {
 public:
  // Listens and serves on return. INVALID_ARGUMENT: no address, or one that other machines can reach without
  // `insecure`.
  // UNAVAILABLE: the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, std::unique_ptr<Engine> engine,
                                                       const Clock& clock = SystemClock());
  ~Server();  // as Shutdown with no time left

  // As given, with the port that was found for port 0.
  const std::string& grpc_address() const { return listener_->address(); }
  // Likewise; empty: neither metrics nor probes are served.
  std::string metrics_address() const { return http_ == nullptr ? "" : http_->address(); }

  // Health answers NOT_SERVING and /readyz 503 from here on; everything else goes on.
  void StopServing();
  // No new rounds from here on.
  void Drain() { registry_.Drain(); }
  // Takes no new calls, and lets those that are under way run for `grace` before they are cancelled; a second later the
  // connections are ended that are left. Returns when all are over. A second call has no effect.
  void Shutdown(absl::Duration grace);

  ServerContext& context() { return server_; }
  Registry& registry() { return registry_; }

 private:
  struct Grpc;

  Server(const ServerOptions& options, std::unique_ptr<Engine> engine, const Clock& clock);
  absl::Status Listen(const ServerOptions& options);
  void RefuseConnection();
  absl::Status ServeHttp(const ServerOptions& options);
  HttpPages Pages() const;
  Gauges CountNow() const;

  const std::unique_ptr<Engine> engine_;
  ServerContext server_;
  Registry registry_;
  std::unique_ptr<Grpc> grpc_;
  std::unique_ptr<Listener> listener_;
  absl::Duration told_refused_ = -absl::InfiniteDuration();  // when a refused connection was last logged
  std::atomic<bool> ready_ = true;
  std::unique_ptr<HttpServer> http_;  // asks all of the above
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_SERVER_H_
