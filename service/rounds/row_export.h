// Rows of committed submissions, as ExportSubmissions sends them.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROW_EXPORT_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROW_EXPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"
#include "service/rounds/result_pages.h"

namespace sparseagg::service {

// Some rows of submissions in ascending order of client ids, in the columns of v1.ExportedSubmissions.
struct ExportPage {
  std::string client_ids;  // each but the last followed by a line feed
  std::string weights;     // float64 of each submission
  std::string num_keys;    // uint32 of each submission
  std::string keys;        // of KeyBytes(spec) bytes
  std::string values;      // in the dtype of the tensor
  uint64_t num_rows = 0;
  // `keys` is empty: those of the first submission ascend by 1 from `first_key` on, those of others from the begin of
  // the exported interval on.
  bool has_runs = false;
  uint64_t first_key = 0;
  std::string next_page_token;  // empty on the last page
};

// The most rows that one row of folded repeated keys is exported as.
inline constexpr uint64_t kMaxTerms = 64;

// Unfinished rows that are read at a time to sample their keys.
inline constexpr uint64_t kSampledRows = uint64_t{1} << 16;

// Returns: bytes of one exported row.
uint64_t ExportedRowBytes(const TensorSpec& spec);

// Returns: whether the rows of an update, from key `begin` on, can be sent without keys.
bool IsRunFrom(const TensorSpec& spec, const UpdateRows& update, uint64_t begin);

// Returns: the rows of an update whose keys are in `keys`. Requires: the interval does not end before it begins.
// Cost: two binary searches.
RowInterval FindRows(const UpdateRows& update, KeyInterval keys);

// Appends rows to `page` until it has more than `max_rows` in all.
// A row whose repeated keys were folded to a wider type is appended as several rows of the tensor's dtype, which add up
// to it exactly when they are folded again in this order: each is the rest, rounded to the dtype. All sums on the way
// are multiples of the unit in the last place of the folded value and not larger, so none of them is rounded.
// Returns: the first row that was not appended; all rows are appended if this is rows.end. At least one is, if the page
// has no rows yet.
// Errors: FAILED_PRECONDITION: a row needs more than kMaxTerms rows.
absl::StatusOr<uint64_t> AppendRows(const TensorSpec& spec, const UpdateRows& update, RowInterval rows,
                                    uint64_t max_rows, ExportPage& page);

// Appends the keys of every n-th row to `page`. `offset`: in [0, every), of the first one.
void AppendSample(const TensorSpec& spec, const UpdateRows& update, RowInterval rows, uint64_t every, uint64_t offset,
                  ExportPage& page);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROW_EXPORT_H_
