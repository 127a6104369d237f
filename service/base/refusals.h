// Statuses of refusals that tell the client what to do, and texts of a bounded length.
#ifndef SPARSEAGG_SERVICE_BASE_REFUSALS_H_
#define SPARSEAGG_SERVICE_BASE_REFUSALS_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Makes a RESOURCE_EXHAUSTED status with the suggested retry delay in the message and for RetryDelayMs.
absl::Status RetryLater(absl::string_view reason);
// Returns: the suggested retry delay of a status that RetryLater made; empty for any other status.
std::string RetryDelayMs(const absl::Status& status);

// The trailing metadata of such an answer.
inline constexpr char kHomeMetadata[] = "sparseagg-home";
inline constexpr char kHomeUrlMetadata[] = "sparseagg-home-url";

// Makes a FAILED_PRECONDITION status with the address in the message, and both for HomeAddress and HomeUrl.
// `address`: of gRPC. `url`: of the HTTP gateway; empty: it has none.
absl::Status HomeElsewhere(absl::string_view client_id, absl::string_view address, absl::string_view url);
// Returns: of a status that HomeElsewhere made, the address; empty for any other status.
std::string HomeAddress(const absl::Status& status);
// The same for the URL.
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
