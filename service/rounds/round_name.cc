#include "service/rounds/round_name.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"

namespace sparseagg::service {
namespace {

constexpr absl::string_view kRoundPrefix = "rounds/";
constexpr size_t kMaxReasonBytes = 1024;

}  // namespace

std::string RoundName(absl::string_view id) { return absl::StrCat(kRoundPrefix, id); }

absl::StatusOr<std::string> ParseRoundName(absl::string_view name) {
  absl::string_view id = name;
  if (!absl::ConsumePrefix(&id, kRoundPrefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name ", QuotedId(name), " is not a round name; round names are rounds/ID"));
  }
  RETURN_IF_ERROR(CheckName(id, "round_id"));
  return std::string(id);
}

std::string StreamName(absl::string_view id) { return absl::StrCat(kStreamPrefix, id); }

absl::StatusOr<std::string> ParseStreamName(absl::string_view name) {
  absl::string_view id = name;
  if (!absl::ConsumePrefix(&id, kStreamPrefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name ", QuotedId(name), " is not a stream name; stream names are streams/ID"));
  }
  RETURN_IF_ERROR(CheckName(id, "stream_id"));
  return std::string(id);
}

absl::Status CheckReason(absl::string_view reason) {
  if (reason.size() <= kMaxReasonBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("reason has ", reason.size(), " bytes; up to ", kMaxReasonBytes, " are allowed"));
}

}  // namespace sparseagg::service
