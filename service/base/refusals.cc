#include "service/base/refusals.h"

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

namespace {

constexpr char kAddressPayload[] = "sparseagg/home";
constexpr char kUrlPayload[] = "sparseagg/home-url";

std::string PayloadOf(const absl::Status& status, absl::string_view type) {
  const auto found = status.GetPayload(type);
  return found.has_value() ? std::string(*found) : "";
}

}  // namespace

absl::Status HomeElsewhere(absl::string_view client_id, absl::string_view address, absl::string_view url) {
  absl::Status status = absl::FailedPreconditionError(
      absl::StrCat("the home of client '", client_id, "' in this round is the server ", address, ", not this one"));
  status.SetPayload(kAddressPayload, absl::Cord(address));
  if (!url.empty()) status.SetPayload(kUrlPayload, absl::Cord(url));
  return status;
}

std::string HomeAddress(const absl::Status& status) { return PayloadOf(status, kAddressPayload); }

std::string HomeUrl(const absl::Status& status) { return PayloadOf(status, kUrlPayload); }

}  // namespace sparseagg::service
