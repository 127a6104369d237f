#include "service/handlers/transfer.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/base/retry_later.h"
#include "service/handlers/call_errors.h"

namespace sparseagg::service {

absl::StatusOr<Transfer> BeginTransfer(ServerContext& server, const Caller& caller, uint64_t bytes) {
  CountLimit& transfers = server.tenants.Of(caller.identity().tenant).transfers;
  if (!transfers.TryAcquire()) {
    server.metrics.CountTenantRefusal("transfers");
    return RetryLater(absl::StrCat("the server's max_transfers_per_tenant ", transfers.limit(),
                                   " calls of the tenant carry chunks or results already"));
  }
  Transfer transfer{Permit(&transfers), {}};
  std::optional<InFlightReservation> reservation = server.in_flight.TryReserveForStream(bytes, caller.PeerName());
  if (!reservation.has_value()) return NoInFlightMemory(server);
  transfer.reservation = *std::move(reservation);
  return transfer;
}

}  // namespace sparseagg::service
