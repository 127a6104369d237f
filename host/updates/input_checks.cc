#include "host/updates/input_checks.h"

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "host/base/half.h"

namespace sparseagg::internal {
namespace {

template <typename T>
T Load(const char* bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

template <typename Key>
absl::Status CheckKeysOf(const InputLocation& location, uint64_t position, const char* keys, uint64_t count,
                         KeyOrder& order) {
  if (count == 0) return absl::OkStatus();
  const KeyFacts facts = sizeof(Key) == 4 ? FindKeyFacts32(keys, count) : FindKeyFacts64(keys, count);
  bool descends = facts.descends;
  bool repeats = facts.repeats;
  const uint64_t num_rows = location.spec->num_rows;
  if (num_rows != 0 && facts.largest >= num_rows) {
    uint64_t i = 0;
    while (i + 1 < count && Load<Key>(keys, i) < num_rows) ++i;
    return KeyBeyondNumRows(location, position + i, Load<Key>(keys, i));
  }
  if (!order.empty) {
    const uint64_t first = Load<Key>(keys, 0);
    descends |= first < order.last;
    repeats |= first == order.last;
  }
  order.empty = false;
  order.last = Load<Key>(keys, count - 1);
  order.sorted = order.sorted && !descends;
  order.unique = order.unique && order.sorted && !repeats;
  return absl::OkStatus();
}

std::string TensorAndChunk(const InputLocation& location) {
  std::string text = Quoted(*location.spec);
  if (location.chunk.has_value()) absl::StrAppend(&text, ", chunk ", *location.chunk);
  return text;
}

}  // namespace

std::string InputLocation::ToString(uint64_t position) const {
  return absl::StrCat(TensorAndChunk(*this), ", position ", position);
}

std::string InputLocation::ToString(uint64_t key, uint64_t index) const {
  const uint32_t row_width = spec->row_width;
  std::string text = absl::StrCat(TensorAndChunk(*this), ", key ", key, ", position ", index / row_width);
  if (row_width > 1) absl::StrAppend(&text, ", column ", index % row_width);
  return text;
}

absl::Status KeyBeyondNumRows(const InputLocation& location, uint64_t position, uint64_t key) {
  return absl::InvalidArgumentError(
      absl::StrCat(location.ToString(position), ": key ", key, " is not below num_rows ", location.spec->num_rows));
}

void ExtendOrder(KeyOrder& order, uint64_t first, uint64_t last) {
  if (!order.empty) {
    order.sorted = order.sorted && first >= order.last;
    order.unique = order.unique && order.sorted && first != order.last;
  }
  order.empty = false;
  order.last = last;
}

absl::Status CheckKeys(const InputLocation& location, uint64_t position, const char* keys, uint64_t count,
                       int key_bytes, KeyOrder& order) {
  return key_bytes == 4 ? CheckKeysOf<uint32_t>(location, position, keys, count, order)
                        : CheckKeysOf<uint64_t>(location, position, keys, count, order);
}

absl::Status CheckKeyRun(const InputLocation& location, uint64_t first, uint64_t count, KeyOrder& order) {
  if (count == 0) return absl::OkStatus();
  const uint64_t num_rows = location.spec->num_rows;
  const uint64_t largest_key = num_rows == 0 ? std::numeric_limits<uint64_t>::max() : num_rows - 1;
  if (first > largest_key) return KeyBeyondNumRows(location, 0, first);
  if (count - 1 > largest_key - first) {
    if (num_rows != 0) return KeyBeyondNumRows(location, num_rows - first, num_rows);
    return absl::InvalidArgumentError(absl::StrCat(location.ToString(0), ": ", count, " implicit keys from ", first,
                                                   " go beyond the largest key 2^64-1"));
  }
  ExtendOrder(order, first, first + (count - 1));
  return absl::OkStatus();
}

absl::Status CheckValues(const InputLocation& location, uint64_t before, const char* values, uint64_t count,
                         KeyAtPosition key_at) {
  if (location.spec->aggregation.on_nonfinite == NonfinitePolicy::kPropagate) return absl::OkStatus();
  const auto check = [&](uint64_t i, auto value_at) {
    if (i == count) return absl::OkStatus();
    const uint64_t index = before + i;
    return absl::InvalidArgumentError(absl::StrCat(location.ToString(key_at(index / location.spec->row_width), index),
                                                   ": value ", static_cast<double>(value_at(i)), " is not finite"));
  };
  // A value is NaN or ±Inf if all its exponent bits are set.
  switch (location.spec->dtype) {
    case DType::kFloat32:
      return check(FindAllBits32(values, count, 0x7f800000u), [&](uint64_t i) { return Load<float>(values, i); });
    case DType::kFloat64:
      return check(FindAllBits64(values, count, 0x7ff0000000000000u),
                   [&](uint64_t i) { return Load<double>(values, i); });
    case DType::kFloat16:
      return check(FindAllBits16(values, count, 0x7c00u),
                   [&](uint64_t i) { return WidenFloat16(Load<uint16_t>(values, i)); });
    case DType::kBFloat16:
      return check(FindAllBits16(values, count, 0x7f80u),
                   [&](uint64_t i) { return WidenBFloat16(Load<uint16_t>(values, i)); });
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt32:
    case DType::kUInt64:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace sparseagg::internal
