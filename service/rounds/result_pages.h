// Results in pages.
#ifndef SPARSEAGG_SERVICE_ROUNDS_RESULT_PAGES_H_
#define SPARSEAGG_SERVICE_ROUNDS_RESULT_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/result.h"

namespace sparseagg::service {

// Keys from `begin` to before `end`; end = 0: to the last key.
struct KeyInterval {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Rows of a result, from `begin` to before `end`.
struct RowInterval {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The rows whose keys are in `keys`. INVALID_ARGUMENT: it ends before it begins. Cost: a binary search.
absl::StatusOr<RowInterval> FindRows(const Result& result, KeyInterval keys);

// Bytes of one row: key, values, count, weight.
uint64_t RowBytes(const Result& result);

// The first rows of `rows` that take at most `page_bytes` together, and at least one.
RowInterval FirstPage(const Result& result, RowInterval rows, uint64_t page_bytes);

// Where to go on: tells the round, by when it was created, since others may come to have its name; the tensor; and the
// next row.
std::string MakePageToken(absl::Time created, size_t tensor, uint64_t next_row);
// What is left of `rows`. INVALID_ARGUMENT: a token that is not ours, of another round or tensor, or from another key
// range.
absl::StatusOr<RowInterval> ResumeAt(absl::string_view page_token, absl::Time created, size_t tensor, RowInterval rows);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_RESULT_PAGES_H_
