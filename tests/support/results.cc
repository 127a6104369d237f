#include "tests/support/results.h"

#include <algorithm>
#include <bit>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

const char* Bytes(const Result& result) { return reinterpret_cast<const char*>(result.values.data()); }

uint64_t BitsAt(const Result& result, size_t index) {
  const size_t size = SizeOf(result.dtype);
  uint64_t bits = 0;
  for (size_t i = 0; i < size; ++i) {
    bits |= uint64_t{std::to_integer<unsigned char>(result.values[index * size + i])} << (8 * i);
  }
  return bits;
}

std::string Show(const Result& result, size_t index) {
  const char* at = Bytes(result) + index * SizeOf(result.dtype);
  const std::string number = IsFloat(result.dtype) ? absl::StrFormat("%.17g", ReadFloat(result.dtype, at))
                             : IsSignedInteger(result.dtype)
                                 ? absl::StrCat(static_cast<int64_t>(ReadInteger(result.dtype, at)))
                                 : absl::StrCat(static_cast<uint64_t>(ReadInteger(result.dtype, at)));
  return absl::StrFormat("%s (bits 0x%0*x)", number, static_cast<int>(2 * SizeOf(result.dtype)), BitsAt(result, index));
}

template <typename T>
std::string DiffField(absl::string_view field, T actual, T expected) {
  if (actual == expected) return "";
  return absl::StrCat(field, ": ", actual, ", expected ", expected);
}

std::string DiffShape(const Result& actual, const Result& expected) {
  const auto layout = [](const Result& r) { return r.layout == Layout::kDense ? "dense" : "sparse"; };
  const auto key_bits = [](const Result& r) { return r.keys.index() == 0 ? 32 : 64; };
  std::string diff = DiffField<absl::string_view>("layout", layout(actual), layout(expected));
  if (diff.empty()) diff = DiffField("has_values", int{actual.has_values}, int{expected.has_values});
  if (diff.empty() && expected.has_values) {
    diff = DiffField<absl::string_view>("dtype", Name(actual.dtype), Name(expected.dtype));
  }
  if (diff.empty()) diff = DiffField("row_width", actual.row_width, expected.row_width);
  if (diff.empty()) diff = DiffField("num_rows", actual.num_rows, expected.num_rows);
  if (diff.empty()) diff = DiffField("num_cut_keys", actual.num_cut_keys, expected.num_cut_keys);
  if (diff.empty() && expected.layout == Layout::kSparse) {
    diff = DiffField("bits of a stored key", key_bits(actual), key_bits(expected));
  }
  return diff;
}

size_t NumStoredKeys(const Result& result) {
  return std::visit([](const auto& keys) { return keys.size(); }, result.keys);
}

// What would make reading the rows unsafe.
std::string DiffSizes(const Result& actual, const Result& expected) {
  const uint64_t rows = actual.num_keys;
  std::string diff =
      DiffField<uint64_t>("stored keys", NumStoredKeys(actual), actual.layout == Layout::kSparse ? rows : 0);
  if (diff.empty()) {
    diff = DiffField<uint64_t>("bytes of values", actual.values.size(),
                               actual.has_values ? rows * actual.row_width * SizeOf(actual.dtype) : 0);
  }
  if (diff.empty()) {
    diff = DiffField<uint64_t>("number of counts", actual.counts.size(), expected.counts.empty() ? 0 : rows);
  }
  if (diff.empty()) {
    diff = DiffField<uint64_t>("number of weights", actual.weights.size(), expected.weights.empty() ? 0 : rows);
  }
  if (diff.empty()) {
    diff = DiffField<uint64_t>("number of moments", actual.moments.size(),
                               expected.moments.empty() ? 0 : rows * actual.row_width);
  }
  return diff;
}

std::string DiffRow(const Result& actual, const Result& expected, uint64_t row) {
  const std::string at = absl::StrCat("row ", row, ", key ", expected.KeyAt(row));
  if (actual.KeyAt(row) != expected.KeyAt(row)) return absl::StrCat(at, ": key ", actual.KeyAt(row));
  for (uint64_t column = 0; expected.has_values && column < expected.row_width; ++column) {
    const size_t index = row * expected.row_width + column;
    if (BitsAt(actual, index) != BitsAt(expected, index)) {
      return absl::StrCat(at, ", column ", column, ": ", Show(actual, index), ", expected ", Show(expected, index));
    }
  }
  if (!expected.counts.empty() && actual.counts[row] != expected.counts[row]) {
    return absl::StrCat(at, ": count ", actual.counts[row], ", expected ", expected.counts[row]);
  }
  if (!expected.weights.empty() &&
      std::bit_cast<uint64_t>(actual.weights[row]) != std::bit_cast<uint64_t>(expected.weights[row])) {
    return absl::StrFormat("%s: weight %.17g, expected %.17g", at, actual.weights[row], expected.weights[row]);
  }
  for (uint64_t column = 0; !expected.moments.empty() && column < expected.row_width; ++column) {
    const double got = actual.moments[row * expected.row_width + column];
    const double wanted = expected.moments[row * expected.row_width + column];
    if (std::bit_cast<uint64_t>(got) != std::bit_cast<uint64_t>(wanted)) {
      return absl::StrFormat("%s, column %u: moment %.17g, expected %.17g", at, column, got, wanted);
    }
  }
  return "";
}

class Digest {
 public:
  void Add(uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15;
    hash_ ^= hash_ >> 29;
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace

std::vector<uint64_t> KeysOf(const Result& result) {
  std::vector<uint64_t> keys(result.num_keys);
  for (uint64_t row = 0; row < result.num_keys; ++row) keys[row] = result.KeyAt(row);
  return keys;
}

std::vector<double> FloatsOf(const Result& result) {
  const size_t size = SizeOf(result.dtype);
  std::vector<double> values(result.values.size() / size);
  for (size_t i = 0; i < values.size(); ++i) values[i] = ReadFloat(result.dtype, Bytes(result) + i * size);
  return values;
}

std::vector<int64_t> IntegersOf(const Result& result) {
  const size_t size = SizeOf(result.dtype);
  std::vector<int64_t> values(result.values.size() / size);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int64_t>(ReadInteger(result.dtype, Bytes(result) + i * size));
  }
  return values;
}

std::vector<uint32_t> CountsOf(const Result& result) { return {result.counts.begin(), result.counts.end()}; }

std::vector<double> WeightsOf(const Result& result) { return {result.weights.begin(), result.weights.end()}; }

std::vector<uint64_t> BitsOf(const Result& result) {
  std::vector<uint64_t> bits(result.values.size() / SizeOf(result.dtype));
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = BitsAt(result, i);
  return bits;
}

std::string Diff(const Result& actual, const Result& expected) {
  std::string diff = DiffShape(actual, expected);
  if (diff.empty()) diff = DiffSizes(actual, expected);
  if (!diff.empty()) return diff;
  const uint64_t rows = std::min(actual.num_keys, expected.num_keys);
  for (uint64_t row = 0; row < rows; ++row) {
    diff = DiffRow(actual, expected, row);
    if (!diff.empty()) return diff;
  }
  return DiffField("rows", actual.num_keys, expected.num_keys);
}

std::string Diff(const std::vector<Result>& actual, const std::vector<Result>& expected) {
  std::string diff = DiffField("tensors", actual.size(), expected.size());
  for (size_t t = 0; diff.empty() && t < expected.size(); ++t) {
    diff = Diff(actual[t], expected[t]);
    if (!diff.empty()) diff = absl::StrCat("tensor ", t, ": ", diff);
  }
  return diff;
}

uint64_t ResultDigest(const Result& result) {
  Digest digest;
  digest.Add(static_cast<uint64_t>(result.layout));
  digest.Add(result.has_values ? 1 + static_cast<uint64_t>(result.dtype) : 0);
  digest.Add(result.row_width);
  digest.Add(result.num_rows);
  digest.Add(result.num_keys);
  digest.Add(result.layout == Layout::kSparse ? result.keys.index() : 0);
  digest.Add(result.counts.size());
  digest.Add(result.weights.size());
  if (result.num_cut_keys != 0) digest.Add(result.num_cut_keys);
  for (const double moment : result.moments) digest.Add(std::bit_cast<uint64_t>(moment));
  std::visit(
      [&](const auto& keys) {
        for (const uint64_t key : keys) digest.Add(key);
      },
      result.keys);
  if (result.has_values) {
    for (const uint64_t bits : BitsOf(result)) digest.Add(bits);
  }
  for (const uint32_t count : result.counts) digest.Add(count);
  for (const double weight : result.weights) digest.Add(std::bit_cast<uint64_t>(weight));
  return digest.value();
}

uint64_t ResultDigest(const std::vector<Result>& results) {
  Digest digest;
  for (const Result& result : results) digest.Add(ResultDigest(result));
  return digest.value();
}

}  // namespace sparseagg::testing
