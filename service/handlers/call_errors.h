// Errors of calls for lack of memory, on whatever transport.
#ifndef SPARSEAGG_SERVICE_HANDLERS_CALL_ERRORS_H_
#define SPARSEAGG_SERVICE_HANDLERS_CALL_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "service/server_context.h"

namespace sparseagg::service {

// Makes a status of RetryLater for lack of in-flight memory, and counts the refusal in the metrics.
absl::Status NoInFlightMemory(ServerContext& server);

// Makes the UNAVAILABLE status of an upload that was slow while other calls waited for its in-flight memory.
absl::Status ReclaimedError(const ServerContext& server);

// Returns: the message of a status, cut to what the headers of a response have room for, between characters.
std::string ShortMessage(const absl::Status& status);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_CALL_ERRORS_H_
