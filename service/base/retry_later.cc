#include "service/base/retry_later.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace sparseagg::service {
namespace {

// Within about this time some in-flight messages have been handled.
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

}  // namespace sparseagg::service
