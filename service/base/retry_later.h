// Refusals for a lack that passes by itself.
#ifndef SPARSEAGG_SERVICE_BASE_RETRY_LATER_H_
#define SPARSEAGG_SERVICE_BASE_RETRY_LATER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Makes a RESOURCE_EXHAUSTED status with the suggested retry delay in the message and for RetryDelayMs.
absl::Status RetryLater(absl::string_view reason);
// Returns: the suggested retry delay of a status that RetryLater made; empty for any other status.
std::string RetryDelayMs(const absl::Status& status);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_RETRY_LATER_H_
