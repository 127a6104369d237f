// Tokens with which a caller goes on after a page of a round.
#ifndef SPARSEAGG_SERVICE_ROUNDS_PAGE_TOKEN_H_
#define SPARSEAGG_SERVICE_ROUNDS_PAGE_TOKEN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sparseagg::service {

// Returns: the token of a place in a round, which has the round's time of creation, because a later round may have the
// same name. `place`: any text.
std::string MakePageToken(absl::Time created, absl::string_view place);

// Returns: the place, within `page_token`. Errors: of ForeignPageToken: not a token of the round.
absl::StatusOr<absl::string_view> PlaceOf(absl::string_view page_token, absl::Time created);

// Returns: INVALID_ARGUMENT, with the token.
absl::Status ForeignPageToken(absl::string_view page_token);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_PAGE_TOKEN_H_
