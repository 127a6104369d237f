#include "service/base/refusals.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sparseagg::service {
namespace {

// Payloads of statuses: the reason, and each of its metadata under a name of its own.
constexpr absl::string_view kReason = "sparseagg/reason";
constexpr absl::string_view kMetadata = "sparseagg/metadata/";
// Within about this time some in-flight messages have been handled.
constexpr absl::string_view kRetryDelayMs = "500";
constexpr char kDelay[] = "retry_delay_ms";
constexpr char kUrl[] = "http_url";

std::string MetadataOf(const absl::Status& status, absl::string_view name) {
  const auto found = status.GetPayload(absl::StrCat(kMetadata, name));
  return found.has_value() ? std::string(*found) : "";
}

}  // namespace

absl::Status WithReason(absl::Status status, absl::string_view reason,
                        std::initializer_list<std::pair<absl::string_view, absl::string_view>> metadata) {
  status.SetPayload(kReason, absl::Cord(reason));
  for (const auto& [name, value] : metadata) {
    if (!value.empty()) status.SetPayload(absl::StrCat(kMetadata, name), absl::Cord(value));
  }
  return status;
}

ErrorInfo InfoOf(const absl::Status& status) {
  ErrorInfo info;
  status.ForEachPayload([&](absl::string_view name, const absl::Cord& value) {
    if (name == kReason) info.reason = std::string(value);
    if (absl::ConsumePrefix(&name, kMetadata)) info.metadata.emplace(name, std::string(value));
  });
  return info;
}

absl::Status WithPrefix(absl::string_view prefix, const absl::Status& status) {
  absl::Status longer(status.code(), absl::StrCat(prefix, status.message()));
  status.ForEachPayload([&](absl::string_view name, const absl::Cord& value) { longer.SetPayload(name, value); });
  return longer;
}

absl::Status RetryLater(absl::string_view reason) {
  return WithReason(
      absl::ResourceExhaustedError(absl::StrCat(reason, "; suggested retry delay: ", kRetryDelayMs, " ms")),
      "TRY_LATER", {{kDelay, kRetryDelayMs}});
}

std::string RetryDelayMs(const absl::Status& status) { return MetadataOf(status, kDelay); }

std::string RetryPushbackMs(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return "";
  const std::string delay = RetryDelayMs(status);
  return delay.empty() ? "-1" : delay;
}

absl::Status HomeElsewhere(absl::string_view client_id, absl::string_view address, absl::string_view url) {
  return WithReason(
      absl::FailedPreconditionError(
          absl::StrCat("the home of client '", client_id, "' in this round is the server ", address, ", not this one")),
      "HOME_ELSEWHERE", {{"address", address}, {kUrl, url}});
}

std::string HomeUrl(const absl::Status& status) { return MetadataOf(status, kUrl); }

}  // namespace sparseagg::service
