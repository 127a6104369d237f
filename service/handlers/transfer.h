// Admission of calls that carry chunks, pages of results or long answers.
#ifndef SPARSEAGG_SERVICE_HANDLERS_TRANSFER_H_
#define SPARSEAGG_SERVICE_HANDLERS_TRANSFER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "service/admission/count_limit.h"
#include "service/admission/in_flight_memory.h"
#include "service/handlers/caller.h"
#include "service/server_context.h"

namespace sparseagg::service {

// What such a call takes, until it is over. Not thread-safe.
struct Transfer {
  Permit permit;  // of its tenant's max_transfers_per_tenant
  InFlightReservation reservation;
};

// Takes a permit of the caller's tenant, and `bytes` of in-flight memory that the call needs besides its messages.
// Errors: of RetryLater, when either is used up; counted in the metrics.
absl::StatusOr<Transfer> BeginTransfer(ServerContext& server, const Caller& caller, uint64_t bytes);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_TRANSFER_H_
