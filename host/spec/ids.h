// The syntax of ids. proto/sparseagg/v1/aggregation.proto has the rules; python/src/sparseagg/_internal/base/arguments.py has
// CheckName and QuotedId, too, with the same texts.
#ifndef SPARSEAGG_HOST_SPEC_IDS_H_
#define SPARSEAGG_HOST_SPEC_IDS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg {

// Checks an id that is part of URLs, headers and file names: of a round, task, owner, tenant or credential.
// Errors: INVALID_ARGUMENT, unless the id is [A-Za-z0-9_][A-Za-z0-9._-]{0,127}; the message names `field`.
absl::Status CheckName(absl::string_view id, absl::string_view field);

// Checks an id that only messages and queries carry: of a client, a submission or a lease.
// Errors: INVALID_ARGUMENT, unless the id is 1 to 256 bytes of UTF-8 without control characters; the message names
// `field`.
absl::Status CheckId(absl::string_view id, absl::string_view field);

// Returns: the text in quotes, for an error; "of N bytes" in place of a long text, and of one that is not UTF-8 or has
// control characters.
std::string QuotedId(absl::string_view text);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_SPEC_IDS_H_
