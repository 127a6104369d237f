#include "service/api/call_errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace sparseagg::service {
namespace {

// gRPC sends the message percent-encoded in a header, which can triple its size. Clients accept 8 KiB of headers.
constexpr size_t kMaxMessageBytes = 2000;

// Suggested retry delay: within about this time some in-flight messages have been handled.
constexpr char kRetryDelayMs[] = "500";
constexpr char kRetryPayload[] = "sparseagg/retry-delay-ms";

}  // namespace

absl::Status RetryLater(absl::string_view reason) {
  absl::Status status =
      absl::ResourceExhaustedError(absl::StrCat(reason, "; suggested retry delay: ", kRetryDelayMs, " ms"));
  status.SetPayload(kRetryPayload, absl::Cord(kRetryDelayMs));
  return status;
}

std::string RetryDelayMs(const absl::Status& status) {
  const auto delay = status.GetPayload(kRetryPayload);
  return delay.has_value() ? std::string(*delay) : "";
}

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
  std::string message(status.message());
  if (message.size() > kMaxMessageBytes) {
    size_t end = kMaxMessageBytes;
    while (end > 0 && (message[end] & 0xc0) == 0x80) --end;  // not within a UTF-8 character
    message.resize(end);
    message += " …";
  }
  return message;
}

}  // namespace sparseagg::service
