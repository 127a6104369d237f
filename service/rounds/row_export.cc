#include "service/rounds/row_export.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/half.h"
#include "host/base/status_macros.h"

namespace sparseagg::service {
namespace {

// Returns: the first of `num_keys` rows whose key is at least `key`.
uint64_t LowerBound(const UpdateRows& update, uint64_t key) {
  return std::visit(
      [&](const auto& keys) -> uint64_t {
        if constexpr (std::is_same_v<std::decay_t<decltype(keys)>, KeyRun>) {
          return key <= keys.first ? 0 : std::min(key - keys.first, update.num_keys);
        } else {
          return static_cast<uint64_t>(std::lower_bound(keys.begin(), keys.end(), key) - keys.begin());
        }
      },
      update.keys);
}

template <typename T>
void Append(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendKey(const TensorSpec& spec, uint64_t key, std::string& out) {
  HasNarrowKeys(spec) ? Append(static_cast<uint32_t>(key), out) : Append(key, out);
}

void AppendKeys(const TensorSpec& spec, const UpdateRows& update, RowInterval rows, std::string& out) {
  const auto copy = [&](const auto& keys) {
    using Keys = std::decay_t<decltype(keys)>;
    if constexpr (!std::is_same_v<Keys, KeyRun>) {
      if (sizeof(keys[0]) == KeyBytes(spec)) {
        out.append(reinterpret_cast<const char*>(keys.data() + rows.begin), (rows.end - rows.begin) * sizeof(keys[0]));
        return;
      }
    }
    for (uint64_t row = rows.begin; row < rows.end; ++row) AppendKey(spec, KeyAt(update.keys, row), out);
  };
  std::visit(copy, update.keys);
}

// Returns: the largest finite value of a dtype narrower than float64.
double FiniteMax(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 65504.0;
    case DType::kBFloat16:
      return 0x1.fep127;
    default:
      return std::numeric_limits<float>::max();
  }
}

// Appends the value of a dtype narrower than float64 that is nearest to `rest`, within its finite range; a value that
// is not finite as it is. Returns: that value.
double AppendNearest(DType dtype, double rest, std::string& out) {
  const double most = FiniteMax(dtype);
  const double bounded = std::isfinite(rest) ? std::clamp(rest, -most, most) : rest;
  if (dtype == DType::kFloat32) {
    const auto value = static_cast<float>(bounded);
    Append(value, out);
    return value;
  }
  if (dtype == DType::kFloat16) {
    const uint16_t bits = RoundToFloat16(bounded);
    Append(bits, out);
    return WidenFloat16(bits);
  }
  const uint16_t bits = RoundToBFloat16(bounded);
  Append(bits, out);
  return WidenBFloat16(bits);
}

int64_t AppendNearest(DType, int64_t rest, std::string& out) {
  const auto value = static_cast<int32_t>(
      std::clamp<int64_t>(rest, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
  Append(value, out);
  return value;
}

// Appends row after row until they add up to `rest`. Returns: how many; more than kMaxTerms: too many, and not all.
template <typename Wide>
uint64_t AppendTerms(DType dtype, std::vector<Wide> rest, std::string& out) {
  uint64_t num_terms = 0;
  bool is_done = false;
  while (!is_done && num_terms <= kMaxTerms) {
    is_done = true;
    for (Wide& value : rest) {
      const Wide term = AppendNearest(dtype, value, out);
      const bool is_whole = value == term || !(value - term == value - term);  // equal, or not finite
      value = is_whole ? Wide{0} : value - term;
      is_done &= is_whole;
    }
    ++num_terms;
  }
  return is_done ? num_terms : kMaxTerms + 1;
}

template <typename Wide>
absl::StatusOr<uint64_t> AppendWideRows(const TensorSpec& spec, const UpdateRows& update, RowInterval rows,
                                        uint64_t max_rows, ExportPage& page) {
  std::vector<Wide> row(spec.row_width);
  std::string terms;
  for (uint64_t r = rows.begin; r < rows.end; ++r) {
    std::memcpy(row.data(), update.values + r * spec.row_width * sizeof(Wide), spec.row_width * sizeof(Wide));
    terms.clear();
    const uint64_t num_terms = AppendTerms(spec.dtype, row, terms);
    const uint64_t key = KeyAt(update.keys, r);
    if (num_terms > kMaxTerms) {
      return absl::FailedPreconditionError(absl::StrCat(
          Quoted(spec), ", key ", key, ": a submission lists the key several times, and its own sum takes ",
          "more than ", kMaxTerms, " values of ", Name(spec.dtype), ", so that it cannot be exported"));
    }
    if (page.num_rows > 0 && page.num_rows + num_terms > max_rows) return r;
    for (uint64_t i = 0; i < num_terms; ++i) AppendKey(spec, key, page.keys);
    page.values += terms;
    page.num_rows += num_terms;
  }
  return rows.end;
}

}  // namespace

uint64_t ExportedRowBytes(const TensorSpec& spec) {
  return KeyBytes(spec) + (spec.aggregation.op == Op::kUnion ? 0 : uint64_t{spec.row_width} * SizeOf(spec.dtype));
}

RowInterval FindRows(const UpdateRows& update, KeyInterval keys) {
  if (update.num_keys == 0) return {};
  const uint64_t begin = LowerBound(update, keys.begin);
  return {begin, keys.end == 0 ? update.num_keys : std::max(begin, LowerBound(update, keys.end))};
}

absl::StatusOr<uint64_t> AppendRows(const TensorSpec& spec, const UpdateRows& update, RowInterval rows,
                                    uint64_t max_rows, ExportPage& page) {
  if (rows.begin == rows.end) return rows.end;
  if (update.values != nullptr && update.dtype != spec.dtype) {
    return IsFloat(spec.dtype) ? AppendWideRows<double>(spec, update, rows, max_rows, page)
                               : AppendWideRows<int64_t>(spec, update, rows, max_rows, page);
  }
  const uint64_t least = page.num_rows == 0 ? 1 : 0;
  const uint64_t room = std::max(least, max_rows - std::min(max_rows, page.num_rows));
  rows.end = rows.begin + std::min(room, rows.end - rows.begin);
  AppendKeys(spec, update, rows, page.keys);
  if (update.values != nullptr) {
    const uint64_t row_bytes = uint64_t{spec.row_width} * SizeOf(spec.dtype);
    page.values.append(reinterpret_cast<const char*>(update.values) + rows.begin * row_bytes,
                       (rows.end - rows.begin) * row_bytes);
  }
  page.num_rows += rows.end - rows.begin;
  return rows.end;
}

void AppendSample(const TensorSpec& spec, const UpdateRows& update, RowInterval rows, uint64_t every, uint64_t offset,
                  ExportPage& page) {
  for (uint64_t row = rows.begin; offset < rows.end - row; row += every) {
    AppendKey(spec, KeyAt(update.keys, row + offset), page.keys);
    ++page.num_rows;
    if (rows.end - row <= every) break;
  }
}

}  // namespace sparseagg::service
