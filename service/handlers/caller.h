// The caller of a method, on whatever transport.
#ifndef SPARSEAGG_SERVICE_HANDLERS_CALLER_H_
#define SPARSEAGG_SERVICE_HANDLERS_CALLER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/admission/count_limit.h"
#include "service/admission/in_flight_memory.h"
#include "service/auth/authenticator.h"
#include "service/auth/authorize.h"
#include "service/base/log.h"
#include "service/server_context.h"

namespace sparseagg::service {

// Makes a status of RetryLater for lack of in-flight memory, and counts the refusal in the metrics.
absl::Status NoInFlightMemory(ServerContext& server);

// Makes the UNAVAILABLE status of an upload that was slow while other calls waited for its in-flight memory.
absl::Status ReclaimedError(const ServerContext& server);

// Returns: the message of a status, cut to what the headers of a response have room for, between characters.
std::string ShortMessage(const absl::Status& status);

// The header, or metadata, by which an admin acts in another tenant.
inline constexpr char kTenantHeader[] = "sparseagg-tenant";

// Who calls a method, and what the caller may do. A transport derives from it.
//
// Life cycle: the transport calls Admit before the method; the other members follow a successful Admit, from any
// thread, and change nothing.
class Caller {
 public:
  virtual ~Caller() = default;

  // Finds out who calls, and decides whether the caller may call `method` at all. `tenants`: values of kTenantHeader.
  // Errors: UNAUTHENTICATED, PERMISSION_DENIED; logged and counted. INVALID_ARGUMENT: a malformed tenant, several
  // tenants, or another one than the only tenant of a server without credentials.
  absl::Status Admit(ServerContext* server, Method method, const CallCredentials& credentials,
                     const std::vector<absl::string_view>& tenants);

  // Whose rounds the call may see is `identity().tenant`.
  const Identity& identity() const { return identity_; }
  // Whether the caller has shown a credential. Otherwise the server believes everybody.
  bool is_authenticated() const { return server_->authenticator.IsRequired(); }

  // Checks that the caller may send or ask for a submission of `*client_id`, and replaces an empty one by the name of a
  // client's credential.
  // Errors: PERMISSION_DENIED; logged and counted.
  absl::Status ResolveClientId(std::string* client_id) const;
  // Checks that the caller may create tasks of `*owner`, and replaces an empty one by the name of the credential.
  // Errors: as of ResolveClientId.
  absl::Status ResolveOwner(std::string* owner) const;
  // ResolveClientId for a message with the field client_id.
  template <typename Request>
  absl::Status ResolveClientOf(Request* request) const {
    return ResolveClientId(request->mutable_client_id());
  }

  // For log lines. Returns: the caller's address, "ipv4:127.0.0.1:1234".
  virtual std::string PeerName() const = 0;
  // For log lines. Returns: the header `traceparent`; empty if the caller sent none.
  virtual absl::string_view Traceparent() const = 0;

 private:
  absl::Status Deny(const absl::Status& status) const;

  ServerContext* server_ = nullptr;
  Method method_ = Method::kGetServerInfo;
  Identity identity_;
};

// Logs one line about a call that has been carried out or begun, with its caller, its peer and its `traceparent`
// header, if the client sent one. `round` and `client` need not be checked names; the line has at most 256 bytes of
// each.
void LogCall(LogLevel level, const Caller& caller, absl::string_view method, absl::string_view round,
             absl::string_view client = "");

// What such a call takes, until it is over. Not thread-safe.
struct Transfer {
  Permit permit;  // of its tenant's max_transfers_per_tenant
  InFlightReservation reservation;
};

// Takes a permit of the caller's tenant, and `bytes` of in-flight memory that the call needs besides its messages.
// Errors: of RetryLater, when either is used up; counted in the metrics.
absl::StatusOr<Transfer> BeginTransfer(ServerContext& server, const Caller& caller, uint64_t bytes);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_CALLER_H_
