// What all calls of a server share, and who makes them.
#ifndef SPARSEAGG_SERVICE_SERVER_CONTEXT_H_
#define SPARSEAGG_SERVICE_SERVER_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/auth/authenticator.h"
#include "service/auth/authorize.h"
#include "service/handlers/api_context.h"
#include "service/handlers/caller.h"
#include "service/net/connection_table.h"
#include "service/tasks/task.h"

namespace sparseagg::service {

// Owned by Server, which outlives all calls and rounds. All members are thread-safe.
struct ServerContext : ApiContext {
  ServerContext(Engine* the_engine, const Clock* the_clock, const Limits& the_limits, int num_threads,
                Store* the_store = nullptr, std::unique_ptr<const Certifier> the_certifier = nullptr)
      : ApiContext(the_engine, the_clock, the_limits, num_threads, the_store, std::move(the_certifier)),
        connections(the_clock),
        authenticator(the_clock),
        audit(the_clock) {}
  ~ServerContext() { Stop(); }

  // Returns: the parts that the task store uses.
  TaskServices ForTasks(Registry* rounds) { return {clock, limits, budget, timer, pool, metrics, *rounds, store}; }

  std::atomic<uint64_t> rpc_calls = 0;  // of gRPC to our methods, from their admission until they are over
  ConnectionTable connections;
  Authenticator authenticator;  // who calls
  AuditLog audit;               // refused callers
};

// The header, or metadata, by which an admin acts in another tenant.
inline constexpr char kTenantHeader[] = "sparseagg-tenant";

// A caller over the network. A transport derives from it, and calls Admit before the method.
class RemoteCaller : public Caller {
 public:
  // Finds out who calls, and decides whether the caller may call `method` at all. `tenants`: values of kTenantHeader.
  // Errors: UNAUTHENTICATED, PERMISSION_DENIED; logged and counted. INVALID_ARGUMENT: a malformed tenant, several
  // tenants, or another one than the only tenant of a server without credentials.
  absl::Status Admit(ServerContext* server, Method method, const CallCredentials& credentials,
                     const std::vector<absl::string_view>& tenants);

 private:
  absl::Status Deny(const absl::Status& status) const override;

  ServerContext* server_ = nullptr;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_SERVER_CONTEXT_H_
