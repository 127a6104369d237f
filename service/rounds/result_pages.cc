#include "service/rounds/result_pages.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"

namespace sparseagg::service {
namespace {

// Returns: the first row whose key is at least `key`.
uint64_t LowerBound(const Result& result, uint64_t key) {
  if (result.layout == Layout::kDense) return std::min(key, result.num_keys);
  return std::visit(
      [&](const auto& keys) {
        return static_cast<uint64_t>(std::lower_bound(keys.begin(), keys.end(), key) - keys.begin());
      },
      result.keys);
}

}  // namespace

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

absl::Status CheckRange(KeyInterval keys) {
  if (keys.end == 0 || keys.end >= keys.begin) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the key range ends at ", keys.end, ", before it begins at ", keys.begin));
}

absl::StatusOr<RowInterval> FindRows(const Result& result, KeyInterval keys) {
  RETURN_IF_ERROR(CheckRange(keys));
  return RowInterval{LowerBound(result, keys.begin), keys.end == 0 ? result.num_keys : LowerBound(result, keys.end)};
}

uint64_t RowBytes(const Result& result) {
  uint64_t bytes = 0;
  if (result.layout == Layout::kSparse) {
    bytes += std::visit([](const auto& keys) { return sizeof(keys[0]); }, result.keys);
  }
  if (result.has_values) bytes += result.row_width * SizeOf(result.dtype);
  if (!result.counts.empty()) bytes += sizeof(uint32_t);
  if (!result.weights.empty()) bytes += sizeof(double);
  if (!result.moments.empty()) bytes += result.row_width * sizeof(double);
  return bytes;
}

RowInterval FirstPage(const Result& result, RowInterval rows, uint64_t page_bytes) {
  const uint64_t row_bytes = std::max<uint64_t>(RowBytes(result), 1);
  const uint64_t num_rows = std::max<uint64_t>(page_bytes / row_bytes, 1);
  return {rows.begin, rows.begin + std::min(num_rows, rows.end - rows.begin)};
}

std::string MakePageToken(absl::Time created, size_t tensor, uint64_t next_row) {
  return MakePageToken(created, absl::StrCat(tensor, ".", next_row));
}

absl::StatusOr<RowInterval> ResumeAt(absl::string_view page_token, absl::Time created, size_t tensor,
                                     RowInterval rows) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(PlaceOf(page_token, created).value_or(""), absl::MaxSplits('.', 1));
  uint64_t token_tensor = 0;
  uint64_t row = 0;
  if (!absl::SimpleAtoi(parts.first, &token_tensor) || !absl::SimpleAtoi(parts.second, &row) ||
      token_tensor != tensor || row < rows.begin || row > rows.end) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_token '", page_token, "' does not belong to this round, tensor and key range"));
  }
  return RowInterval{row, rows.end};
}

}  // namespace sparseagg::service
