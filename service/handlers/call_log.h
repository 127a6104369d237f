// Log lines of calls.
#ifndef SPARSEAGG_SERVICE_HANDLERS_CALL_LOG_H_
#define SPARSEAGG_SERVICE_HANDLERS_CALL_LOG_H_

#include "absl/strings/string_view.h"
#include "service/base/log.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {

// Logs one line about a call that has been carried out or begun, with its caller, its peer and its `traceparent`
// header, if the client sent one. `round` and `client` need not be checked names; the line has at most 256 bytes of
// each.
void LogCall(LogLevel level, const Caller& caller, absl::string_view method, absl::string_view round,
             absl::string_view client = "");

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_CALL_LOG_H_
