// Generators of random keys and values.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/support/generators.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

uint64_t LastKey(uint64_t num_rows) { return num_rows - 1; }  // of num_rows 0: 2^64 − 1

uint64_t ZipfKey(Rng& rng, uint64_t num_rows) {
  // With exponent 1, ranks are uniform on a logarithmic scale.
  const double last = static_cast<double>(LastKey(num_rows));
  const double rank = std::exp(rng.Unit() * std::log(last + 1.0)) - 1.0;
  return rank >= last ? LastKey(num_rows) : static_cast<uint64_t>(rank);
}

uint64_t EdgeKey(Rng& rng, uint64_t num_rows) {
  // Where blocks, digits and key widths of engines are likely to end.
  const uint64_t power = uint64_t{1} << rng.Below(64);
  const uint64_t key = rng.Pick({power - 1, power, power + 1, LastKey(num_rows), uint64_t{0}});
  return std::min(key, LastKey(num_rows));
}

double RandomFloat(Rng& rng, DType dtype, ValueStyle style) {
  const double sign = rng.Coin() ? 1.0 : -1.0;
  const bool is_half = dtype == DType::kFloat16;
  const int max_exponent = is_half ? 15 : dtype == DType::kFloat64 ? 1023 : 127;
  const int min_exponent = is_half ? -24 : dtype == DType::kFloat64 ? -1074 : dtype == DType::kFloat32 ? -149 : -133;
  switch (style) {
    case ValueStyle::kSmallIntegers:
      return static_cast<double>(rng.Between(-9, 9));
    case ValueStyle::kUnit:
      return sign * rng.Unit();
    case ValueStyle::kWide:
      return sign * std::ldexp(1.0 + rng.Unit(), static_cast<int>(rng.Between(min_exponent, max_exponent - 1)));
    case ValueStyle::kDenormal:
      return sign * std::ldexp(static_cast<double>(rng.Below(9)), min_exponent);
    case ValueStyle::kHuge:
      return sign * std::ldexp(1.0 + 0.5 * rng.Unit(), max_exponent);
    case ValueStyle::kZeros:
      return rng.OneIn(4) ? sign : sign * 0.0;
    case ValueStyle::kCancelling:
      return sign * std::ldexp(1.0, is_half ? static_cast<int>(7 * rng.Below(3)) : static_cast<int>(30 * rng.Below(3)));
    case ValueStyle::kNonfinite:
      if (rng.OneIn(4)) return sign * std::numeric_limits<double>::infinity();
      return rng.OneIn(4) ? std::copysign(std::nan(""), sign) : sign * rng.Unit();
  }
  return 0.0;
}

uint64_t RandomInteger(Rng& rng, DType dtype, ValueStyle style) {
  const int num_bits = static_cast<int>(8 * SizeOf(dtype));
  switch (style) {
    case ValueStyle::kWide:
    case ValueStyle::kNonfinite:
      return rng.Bits() >> rng.Below(static_cast<uint64_t>(num_bits));
    case ValueStyle::kHuge: {
      const uint64_t top = uint64_t{1} << (num_bits - 1);
      return rng.Pick({top, top - 1, top + 1, top - 2, top / 2, ~uint64_t{0}});
    }
    case ValueStyle::kZeros:
      return rng.OneIn(4) ? 1 : 0;
    case ValueStyle::kCancelling: {
      const uint64_t magnitude = uint64_t{1} << (30 * rng.Below(static_cast<uint64_t>(num_bits) / 32 + 1));
      return rng.Coin() ? magnitude : ~magnitude + 1;
    }
    default:
      return static_cast<uint64_t>(rng.Between(-9, 9));
  }
}

}  // namespace

std::vector<uint64_t> RandomKeys(Rng& rng, uint64_t num_rows, size_t count, KeyStyle style, KeyOrder order) {
  std::vector<uint64_t> keys;
  keys.reserve(count);
  const uint64_t one_key = rng.Below(num_rows);
  uint64_t cluster = rng.Below(num_rows);
  for (size_t i = 0; i < count; ++i) {
    switch (style) {
      case KeyStyle::kUniform:
        keys.push_back(rng.Below(num_rows));
        break;
      case KeyStyle::kZipf:
        keys.push_back(ZipfKey(rng, num_rows));
        break;
      case KeyStyle::kClustered:
        if (rng.OneIn(64)) cluster = rng.Below(num_rows);
        keys.push_back(cluster - std::min(cluster, rng.Below(256)));
        break;
      case KeyStyle::kOneKey:
        keys.push_back(one_key);
        break;
      case KeyStyle::kLargest:
        keys.push_back(LastKey(num_rows) - std::min(LastKey(num_rows), rng.Below(4)));
        break;
      case KeyStyle::kEdges:
        keys.push_back(EdgeKey(rng, num_rows));
        break;
    }
  }
  if (order == KeyOrder::kShuffled) return keys;
  std::sort(keys.begin(), keys.end());
  if (order == KeyOrder::kSortedUnique || order == KeyOrder::kShuffledUnique) {
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  }
  if (order == KeyOrder::kShuffledUnique) rng.Shuffle(keys);
  if (order == KeyOrder::kDescending) std::reverse(keys.begin(), keys.end());
  return keys;
}

std::string RandomValues(Rng& rng, DType dtype, size_t count, ValueStyle style) {
  if (IsFloat(dtype)) {
    std::vector<double> values(count);
    for (double& value : values) value = RandomFloat(rng, dtype, style);
    return PackFloats(dtype, values);
  }
  std::string bytes;
  for (size_t i = 0; i < count; ++i) AppendBits(dtype, RandomInteger(rng, dtype, style), bytes);
  return bytes;
}

}  // namespace sparseagg::testing
