#include "service/handlers/caller.h"

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/base/refusals.h"
#include "service/codec/sliced_message.h"

namespace sparseagg::service {
namespace {

// gRPC sends the message percent-encoded in a header, which can triple its size, and once more in StatusDetails, as
// Base64. Clients accept 8 KiB of headers.
constexpr size_t kMaxMessageBytes = 1500;

}  // namespace

absl::Status NoInFlightMemory(ApiContext& context) {
  context.metrics.CountRefusedInFlight();
  return RetryLater(absl::StrCat("in-flight messages use all of the ", context.in_flight.limit(),
                                 " bytes reserved for them, of the server's memory limit of ",
                                 context.limits.memory_limit_bytes, " bytes"));
}

absl::Status ReclaimedError(const ApiContext& context) {
  return absl::UnavailableError(absl::StrCat(
      "the server aborted the upload, which made no progress for ", absl::FormatDuration(InFlightMemory::kReclaimAfter),
      " while other calls waited for its memory. In-flight messages may use ", context.in_flight.limit(),
      " bytes in all; try again, with smaller messages if the connection is slow"));
}

std::string ShortMessage(const absl::Status& status) {
  const absl::string_view message = Shorten(status.message(), kMaxMessageBytes);
  return absl::StrCat(message, message.size() < status.message().size() ? " …" : "");
}

std::string StatusDetails(const absl::Status& status) {
  const ErrorInfo info = InfoOf(status);
  if (info.reason.empty()) return "";
  // Messages and their fields by number, as google/rpc/error_details.proto and google/rpc/status.proto have them.
  std::string error = WireField(1, info.reason) + WireField(2, kErrorDomain);
  for (const auto& [name, value] : info.metadata) error += WireField(3, WireField(1, name) + WireField(2, value));
  const std::string any = WireField(1, "type.googleapis.com/google.rpc.ErrorInfo") + WireField(2, error);
  const std::string code = {'\x08', static_cast<char>(status.raw_code())};
  return code + WireField(2, ShortMessage(status)) + WireField(3, any);
}

absl::Status Caller::ResolveClientId(std::string* client_id) const {
  if (client_id->empty() && identity_.role == Role::kClient) *client_id = identity_.name;
  const absl::Status allowed = Authorize(identity_, method_, {identity_.tenant, *client_id, std::nullopt});
  return allowed.ok() ? allowed : Deny(allowed);
}

absl::Status Caller::ResolveOwner(std::string* owner) const {
  if (owner->empty()) *owner = identity_.name;
  const absl::Status allowed = Authorize(identity_, method_, {identity_.tenant, std::nullopt, *owner});
  return allowed.ok() ? allowed : Deny(allowed);
}

namespace {

// The length of a traceparent by the W3C standard. Log lines wait in memory, so that longer headers are cut.
constexpr size_t kTraceparentBytes = 55;
// The length of the longest valid id.
constexpr size_t kMaxNameBytes = 256;

}  // namespace

void LogCall(LogLevel level, const Caller& caller, absl::string_view method, absl::string_view round,
             absl::string_view client) {
  if (!IsLogged(level)) return;
  Log(level, "call",
      {{"method", method},
       {"round", round.substr(0, kMaxNameBytes)},
       {"client", client.substr(0, kMaxNameBytes)},
       {"caller", caller.is_authenticated() ? caller.identity().ToString() : ""},
       {"peer", caller.PeerName()},
       {"traceparent", caller.Traceparent().substr(0, kTraceparentBytes)}});
}

absl::StatusOr<Transfer> BeginTransfer(ApiContext& context, const Caller& caller, uint64_t bytes) {
  CountLimit& transfers = context.tenants.Of(caller.identity().tenant).transfers;
  if (!transfers.TryAcquire()) {
    context.metrics.CountTenantRefusal("transfers");
    return RetryLater(absl::StrCat("the server's max_transfers_per_tenant ", transfers.limit(),
                                   " calls of the tenant carry chunks or results already"));
  }
  Transfer transfer{Permit(&transfers), {}};
  std::optional<InFlightReservation> reservation = context.in_flight.TryReserveForStream(bytes, caller.PeerName());
  if (!reservation.has_value()) return NoInFlightMemory(context);
  transfer.reservation = *std::move(reservation);
  return transfer;
}

}  // namespace sparseagg::service
