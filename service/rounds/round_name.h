// What callers write about rounds: their names, and the reason for an end.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_NAME_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_NAME_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Returns: "rounds/ID".
std::string RoundName(absl::string_view id);
// Returns: the id in "rounds/ID". Errors: INVALID_ARGUMENT: not a round name.
absl::StatusOr<std::string> ParseRoundName(absl::string_view name);
// Of streams: "streams/ID".
inline constexpr char kStreamPrefix[] = "streams/";
std::string StreamName(absl::string_view id);
absl::StatusOr<std::string> ParseStreamName(absl::string_view name);

// Checks the reason that a caller gives for the end of a round or a task.
// Errors: INVALID_ARGUMENT: more than 1024 bytes.
absl::Status CheckReason(absl::string_view reason);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_NAME_H_
