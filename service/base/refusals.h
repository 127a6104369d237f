// Statuses of refusals that tell the client what to do, and texts of a bounded length.
#ifndef SPARSEAGG_SERVICE_BASE_REFUSALS_H_
#define SPARSEAGG_SERVICE_BASE_REFUSALS_H_

#include <cstddef>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// What an error tells programs besides its code: a google.rpc.ErrorInfo of kErrorDomain. aggregation.proto lists the
// reasons, with their metadata.
struct ErrorInfo {
  std::string reason;  // empty: the error has none
  std::map<std::string, std::string> metadata;
};
inline constexpr absl::string_view kErrorDomain = "sparseagg";

// Returns: the status with this reason, for InfoOf. Empty metadata is left out.
absl::Status WithReason(absl::Status status, absl::string_view reason,
                        std::initializer_list<std::pair<absl::string_view, absl::string_view>> metadata = {});
ErrorInfo InfoOf(const absl::Status& status);
// Returns: the status with `prefix` in front of its message.
absl::Status WithPrefix(absl::string_view prefix, const absl::Status& status);

// Makes a RESOURCE_EXHAUSTED status for a lack that passes by itself: TRY_LATER, with the suggested retry delay.
absl::Status RetryLater(absl::string_view reason);
// Returns: the suggested retry delay of a status that RetryLater made; empty for any other status.
std::string RetryDelayMs(const absl::Status& status);
// Returns: the metadata grpc-retry-pushback-ms, which the retries of gRPC follow: the suggested retry delay; -1, never,
// where a limit is reached that does not pass by itself; empty for other codes than RESOURCE_EXHAUSTED.
std::string RetryPushbackMs(const absl::Status& status);
inline constexpr char kPushbackMetadata[] = "grpc-retry-pushback-ms";

// Makes a FAILED_PRECONDITION status: HOME_ELSEWHERE, with both addresses.
// `address`: of gRPC. `url`: of the HTTP gateway; empty: it has none.
absl::Status HomeElsewhere(absl::string_view client_id, absl::string_view address, absl::string_view url);
// Returns: of a status that HomeElsewhere made, the URL; empty for any other status, and where there is none.
std::string HomeUrl(const absl::Status& status);

// Returns: the beginning of `text`, at most `max_bytes` of it, cut between two UTF-8 characters.
inline absl::string_view Shorten(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (text[end] & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_REFUSALS_H_
