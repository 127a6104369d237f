// Errors of calls for lack of memory, on whatever transport.
#ifndef SPARSEAGG_SERVICE_API_CALL_ERRORS_H_
#define SPARSEAGG_SERVICE_API_CALL_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/server_context.h"

namespace sparseagg::service {

// Makes a RESOURCE_EXHAUSTED status for a lack that passes by itself, with the suggested retry delay in the message and
// for RetryDelayMs.
absl::Status RetryLater(absl::string_view reason);
// Returns: the suggested retry delay of a status that RetryLater made; empty for any other status.
std::string RetryDelayMs(const absl::Status& status);

// Makes that status for lack of in-flight memory, and counts the refusal in the metrics.
absl::Status NoInFlightMemory(ServerContext& server);

// Makes the UNAVAILABLE status of an upload that was slow while other calls waited for its in-flight memory.
absl::Status ReclaimedError(const ServerContext& server);

// Returns: the message of a status, cut to what the headers of a response have room for, between characters.
std::string ShortMessage(const absl::Status& status);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_API_CALL_ERRORS_H_
