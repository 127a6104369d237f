// The server: rounds, their gRPC service, health, reflection, metrics and probes.
#ifndef SPARSEAGG_SERVICE_SERVER_H_
#define SPARSEAGG_SERVICE_SERVER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/engine.h"
#include "service/auth/jwt.h"
#include "service/base/clock.h"
#include "service/base/limits.h"
#include "service/base/log.h"
#include "service/base/metrics.h"
#include "service/certificates/openssl_certifier.h"
#include "service/gateway/gateway.h"
#include "service/handlers/task_methods.h"
#include "service/models/model_registry.h"
#include "service/net/listener.h"
#include "service/net/tls.h"
#include "service/rounds/registry.h"
#include "service/server_context.h"
#include "service/store/store.h"
#include "service/streams/stream_registry.h"
#include "service/tasks/task_registry.h"

namespace sparseagg::service {

struct ServerOptions {
  std::string grpc_address = "127.0.0.1:8001";  // HOST:PORT (port 0: a free one) or unix:PATH
  TlsOptions tls;
  std::string tokens_file;                      // bearer tokens (TokenTable); empty: none
  JwtOptions jwt;                               // JSON Web Tokens
  std::string noise_key_file;                   // secret of the noise of private rounds; empty: there are none
  std::string certificate_key;                  // signs certificates of rounds; empty: there are none
  bool insecure = false;                        // allows addresses that other machines can reach without these
  std::string metrics_address;                  // HOST:PORT (port 0: a free one); empty: no metrics and probes
  bool metrics_optional = false;                // starts without metrics if metrics_address cannot be used
  HttpOptions http;                             // the HTTP gateway; an empty address: none
  bool http_optional = false;                   // starts without the gateway if its address cannot be used
  int num_threads = 1;                          // of the worker pool
  std::string data_dir;                         // of the store; empty: rounds live in memory
  Durability durability = Durability::kMemory;  // other than kMemory only with data_dir
  std::string backup_dir;                       // of backups of the store; empty: there are none
  Limits limits;
};

// A running server: the owner of the engine, the rounds and all transports.
//
// Life cycle: Start; then, to stop, StopServing (load balancers look elsewhere), Drain (no new rounds) and Shutdown.
// The destructor shuts down at once.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(options, CreateCpuEngine({2})));
//   printf("%s\n", server->grpc_address().c_str());
//   …
//   server->Shutdown(absl::Seconds(10));
//
// Thread-safe.
class Server {
 public:
  // Starts a server that serves on return. `clock` must outlive the server.
  // Errors: INVALID_ARGUMENT for a malformed address, for one that other machines can reach although callers need no
  // credential or TLS is off, without `insecure`, and for malformed files of credentials; UNAVAILABLE if an address is
  // in use or not permitted; as Store::Open and RestoreRounds; RESOURCE_EXHAUSTED if there is no memory for its
  // threads; otherwise of the file system. Blocks: with a store, until its rounds are restored.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, std::unique_ptr<Engine> engine,
                                                       const Clock& clock = SystemClock());
  ~Server();  // Shutdown without grace

  // The address with the port in use.
  const std::string& grpc_address() const { return listener_->address(); }
  // The same for the HTTP gateway; empty if there is none.
  std::string http_address() const { return gateway_ == nullptr ? "" : gateway_->address(); }
  // The same for metrics and probes; empty if they are not served.
  std::string metrics_address() const { return metrics_ == nullptr ? "" : metrics_->address(); }

  // Makes health answer NOT_SERVING and /readyz 503. The server still serves everything.
  void StopServing();
  // Refuses new rounds, and hands out no more tasks.
  void Drain() {
    tasks_->Drain();
    registry_.Drain();
    models_.Drain();
  }
  // Refuses new calls, ends connections without calls within a second, cancels calls that last longer than `grace`, and
  // ends the remaining connections a second later. Another call has no effect.
  // Blocks: until all calls have ended.
  void Shutdown(absl::Duration grace);

  ServerContext& context() { return server_; }
  Registry& registry() { return registry_; }
  StreamRegistry& streams() { return streams_; }
  TaskRegistry& tasks() { return *tasks_; }
  ModelRegistry& models() { return models_; }

 private:
  struct Grpc;

  Server(const ServerOptions& options, std::unique_ptr<Engine> engine, const Clock& clock, std::unique_ptr<Store> store,
         std::unique_ptr<OpenSslCertifier> certifier);
  static absl::StatusOr<std::unique_ptr<Server>> StartOrThrow(const ServerOptions& options,
                                                              std::unique_ptr<Engine> engine, const Clock& clock);
  absl::Status ReadNoiseKey(const ServerOptions& options);
  absl::Status Listen(const ServerOptions& options);
  void RefuseConnection(const char* reason);
  // Counts and logs a connection that was ended because its client sent too many `what`.
  void CountEndedConnection(const char* what);
  void LogConnection(const char* event, absl::string_view reason);
  absl::Status ServeMetrics(const ServerOptions& options);
  absl::Status ServeGateway(const ServerOptions& options);
  // Adds to the histories of activity and memory from time to time, until the timer stops.
  void KeepHistory();
  // Returns: the time of day at the start and what has passed since. The clock may be set meanwhile, also by mistake.
  absl::Time TimeSeen() const;
  // Writes TimeSeen to the store, again and again.
  void KeepTime();
  // Reads changed files of credentials from time to time, until the timer stops.
  void KeepCredentialsFresh();
  // Returns: the probes' pages, at these paths.
  Pages Probes(const char* live, const char* ready) const;
  std::vector<GaugeValue> CountNow() const;

  const std::unique_ptr<Engine> engine_;
  const std::unique_ptr<Store> store_;   // null: rounds live in memory
  std::shared_ptr<TlsCredentials> tls_;  // null: no TLS
  uint64_t max_http_connections_;        // what memory and open files have room for
  OpenSslCertifier* const certifier_;    // in server_; null: no certificates
  ServerContext server_;
  const Moment started_ = server_.clock.Now();
  Registry registry_;
  StreamRegistry streams_;
  const std::shared_ptr<TaskRegistry> tasks_;
  ModelRegistry models_;
  Api api_;
  std::unique_ptr<Grpc> grpc_;
  std::unique_ptr<Listener> listener_;
  LineLimit connection_lines_{&server_.clock};  // of the log, about refused and ended connections
  std::atomic<bool> ready_ = true;
  std::unique_ptr<Gateway> gateway_;  // null: not served
  std::unique_ptr<Gateway> metrics_;  // null: not served. The last member: its pages use all others
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_SERVER_H_
