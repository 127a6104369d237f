#include "service/rpc/call_log.h"

namespace sparseagg::service {
namespace {

// The length of a traceparent by the W3C standard. Log lines wait in memory, so that longer headers are cut.
constexpr size_t kTraceparentBytes = 55;
// The length of the longest valid id.
constexpr size_t kMaxNameBytes = 256;

}  // namespace

void LogCall(LogLevel level, const CallContext& context, absl::string_view method, absl::string_view round,
             absl::string_view client) {
  if (!IsLogged(level)) return;
  const auto& metadata = context.client_metadata();
  const auto trace = metadata.find("traceparent");
  const absl::string_view traceparent =
      trace == metadata.end() ? "" : absl::string_view(trace->second.data(), trace->second.size());
  Log(level, "call",
      {{"method", method},
       {"round", round.substr(0, kMaxNameBytes)},
       {"client", client.substr(0, kMaxNameBytes)},
       {"caller", context.is_authenticated() ? context.caller().ToString() : ""},
       {"peer", context.peer()},
       {"traceparent", traceparent.substr(0, kTraceparentBytes)}});
}

}  // namespace sparseagg::service
