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
#include "service/auth/authorize.h"
#include "service/base/log.h"
#include "service/handlers/api_context.h"

namespace sparseagg::service {

// Makes a status of RetryLater for lack of in-flight memory, and counts the refusal in the metrics.
absl::Status NoInFlightMemory(ApiContext& context);

// Makes the UNAVAILABLE status of an upload that was slow while other calls waited for its in-flight memory.
absl::Status ReclaimedError(const ApiContext& context);

// Returns: the message of a status, cut to what the headers of a response have room for, between characters.
std::string ShortMessage(const absl::Status& status);

// Returns: the serialized google.rpc.Status of an error with a reason, for the metadata grpc-status-details-bin; empty
// for other errors.
std::string StatusDetails(const absl::Status& status);

// Who calls a method, and what the caller may do: from the start on, or once a RemoteCaller is admitted. Then nothing
// changes, and members may be called from any thread.
class Caller {
 public:
  virtual ~Caller() = default;

  // Whose rounds the call may see is `identity().tenant`.
  const Identity& identity() const { return identity_; }
  // Whether the caller has shown a credential. Otherwise it is believed.
  bool is_authenticated() const { return is_authenticated_; }

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

 protected:
  Method method_ = Method::kGetServerInfo;
  bool is_authenticated_ = false;
  Identity identity_;

 private:
  // Logs and counts a refusal. Returns: `status`.
  virtual absl::Status Deny(const absl::Status& status) const { return status; }
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
absl::StatusOr<Transfer> BeginTransfer(ApiContext& context, const Caller& caller, uint64_t bytes);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_CALLER_H_
