#include "service/handlers/call_log.h"

namespace sparseagg::service {
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

}  // namespace sparseagg::service
