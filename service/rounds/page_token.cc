#include "service/rounds/page_token.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sparseagg::service {

std::string MakePageToken(absl::Time created, absl::string_view place) {
  return absl::StrCat(absl::ToUnixNanos(created), ".", place);
}

absl::StatusOr<absl::string_view> PlaceOf(absl::string_view page_token, absl::Time created) {
  absl::string_view place = page_token;
  if (!absl::ConsumePrefix(&place, MakePageToken(created, ""))) return ForeignPageToken(page_token);
  return place;
}

absl::Status ForeignPageToken(absl::string_view page_token) {
  return absl::InvalidArgumentError(absl::StrCat("page_token '", page_token, "' does not belong to this round"));
}

}  // namespace sparseagg::service
