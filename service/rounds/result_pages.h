// Division of results into pages, and page tokens.
#ifndef SPARSEAGG_SERVICE_ROUNDS_RESULT_PAGES_H_
#define SPARSEAGG_SERVICE_ROUNDS_RESULT_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/result.h"

namespace sparseagg::service {

// Returns: the token of a place in a round, which has the round's time of creation, because a later round may have the
// same name. `place`: any text.
std::string MakePageToken(absl::Time created, absl::string_view place);

// Returns: the place, within `page_token`. Errors: of ForeignPageToken: not a token of the round.
absl::StatusOr<absl::string_view> PlaceOf(absl::string_view page_token, absl::Time created);

// Returns: INVALID_ARGUMENT, with the token.
absl::Status ForeignPageToken(absl::string_view page_token);

// Keys [begin, end); end = 0: all keys from `begin` on.
struct KeyInterval {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Rows [begin, end) of a result.
struct RowInterval {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Errors: INVALID_ARGUMENT: the interval ends before it begins.
absl::Status CheckRange(KeyInterval keys);

// Returns: the rows whose keys are in `keys`.
// Errors: INVALID_ARGUMENT: the interval ends before it begins. Cost: two binary searches.
absl::StatusOr<RowInterval> FindRows(const Result& result, KeyInterval keys);

// Returns: unpacked bytes of one row: key (sparse results only), values, count, weight, moments.
uint64_t RowBytes(const Result& result);

// Returns: the first rows of `rows` that take at most `page_bytes` unpacked, but at least one row unless `rows` is
// empty.
RowInterval FirstPage(const Result& result, RowInterval rows, uint64_t page_bytes);

// Returns: the token of the page that begins at `next_row`.
std::string MakePageToken(absl::Time created, size_t tensor, uint64_t next_row);
// Returns: the rows of `rows` from the token's row on.
// Errors: INVALID_ARGUMENT: not a page token, or the token of another round or tensor, or its row is not in `rows`.
absl::StatusOr<RowInterval> ResumeAt(absl::string_view page_token, absl::Time created, size_t tensor, RowInterval rows);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_RESULT_PAGES_H_
