#include "service/handlers/call_errors.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "service/base/retry_later.h"
#include "service/base/short_text.h"

namespace sparseagg::service {
namespace {

// gRPC sends the message percent-encoded in a header, which can triple its size. Clients accept 8 KiB of headers.
constexpr size_t kMaxMessageBytes = 2000;

}  // namespace

absl::Status NoInFlightMemory(ServerContext& server) {
  server.metrics.CountRefusedInFlight();
  return RetryLater(absl::StrCat("in-flight messages use all of the ", server.in_flight.limit(),
                                 " bytes reserved for them, of the server's memory limit of ",
                                 server.limits.memory_limit_bytes, " bytes"));
}

absl::Status ReclaimedError(const ServerContext& server) {
  return absl::UnavailableError(absl::StrCat(
      "the server aborted the upload, which made no progress for ", absl::FormatDuration(InFlightMemory::kReclaimAfter),
      " while other calls waited for its memory. In-flight messages may use ", server.in_flight.limit(),
      " bytes in all; try again, with smaller messages if the connection is slow"));
}

std::string ShortMessage(const absl::Status& status) {
  const absl::string_view message = Shorten(status.message(), kMaxMessageBytes);
  return absl::StrCat(message, message.size() < status.message().size() ? " …" : "");
}

}  // namespace sparseagg::service
