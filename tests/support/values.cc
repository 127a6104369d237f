#include "tests/support/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sparseagg::testing {
namespace {

struct FloatFormat {
  int fraction_bits;
  int exponent_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint64_t infinity() const { return ((uint64_t{1} << exponent_bits) - 1) << fraction_bits; }
};

FloatFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return {10, 5};
    case DType::kBFloat16:
      return {7, 8};
    case DType::kFloat32:
      return {23, 8};
    default:
      return {52, 11};
  }
}

uint64_t ReadBits(DType dtype, const char* bytes) {
  uint64_t bits = 0;
  for (size_t i = 0; i < SizeOf(dtype); ++i) bits |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return bits;
}

// The magnitude of a finite number, rounded to nearest even: it is counted in units of its own last place.
uint64_t RoundMagnitude(const FloatFormat& format, double magnitude) {
  if (magnitude == 0.0) return 0;
  int exponent;  // magnitude = f·2^exponent with f in [1/2, 1)
  std::frexp(magnitude, &exponent);
  const int smallest_normal = 1 - format.bias();
  const int leading = std::max(exponent - 1, smallest_normal);
  const double units = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - leading));
  // A carry out of the fraction goes up into the exponent by itself, as does a subnormal that becomes normal.
  const uint64_t bits =
      (static_cast<uint64_t>(leading - smallest_normal) << format.fraction_bits) + static_cast<uint64_t>(units);
  return std::min(bits, format.infinity());
}

}  // namespace

double ReadFloat(DType dtype, const char* bytes) {
  const FloatFormat format = FormatOf(dtype);
  const uint64_t bits = ReadBits(dtype, bytes);
  const uint64_t fraction = bits & ((uint64_t{1} << format.fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> format.fraction_bits) & ((1 << format.exponent_bits) - 1);
  const bool negative = (bits >> (format.fraction_bits + format.exponent_bits)) & 1;
  double magnitude;
  if (exponent == (1 << format.exponent_bits) - 1) {
    magnitude = fraction == 0 ? HUGE_VAL : std::nan("");
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<double>(fraction), 1 - format.bias() - format.fraction_bits);
  } else {
    const uint64_t significand = fraction | (uint64_t{1} << format.fraction_bits);
    magnitude = std::ldexp(static_cast<double>(significand), exponent - format.bias() - format.fraction_bits);
  }
  return negative ? -magnitude : magnitude;
}

Int128 ReadInteger(DType dtype, const char* bytes) {
  const uint64_t bits = ReadBits(dtype, bytes);
  const int num_bits = static_cast<int>(8 * SizeOf(dtype));
  const bool negative = IsSignedInteger(dtype) && ((bits >> (num_bits - 1)) & 1) != 0;
  return negative ? Int128{bits} - (Int128{1} << num_bits) : Int128{bits};
}

uint64_t RoundToBits(DType dtype, double value) {
  const FloatFormat format = FormatOf(dtype);
  if (std::isnan(value)) return format.infinity() | (uint64_t{1} << (format.fraction_bits - 1));
  const uint64_t bits = std::isinf(value) ? format.infinity() : RoundMagnitude(format, std::fabs(value));
  const bool negative = std::signbit(value) && bits != 0;
  return bits | (uint64_t{negative} << (format.fraction_bits + format.exponent_bits));
}

void AppendBits(DType dtype, uint64_t bits, std::string& bytes) {
  for (size_t i = 0; i < SizeOf(dtype); ++i) bytes.push_back(static_cast<char>(bits >> (8 * i)));
}

std::string PackFloats(DType dtype, const std::vector<double>& values) {
  const int sign_bit = static_cast<int>(8 * SizeOf(dtype)) - 1;
  std::string bytes;
  bytes.reserve(values.size() * SizeOf(dtype));
  for (const double value : values) {
    AppendBits(dtype, RoundToBits(dtype, value) | (uint64_t{std::signbit(value)} << sign_bit), bytes);
  }
  return bytes;
}

std::string PackIntegers(DType dtype, const std::vector<int64_t>& values) {
  std::string bytes;
  bytes.reserve(values.size() * SizeOf(dtype));
  for (const int64_t value : values) AppendBits(dtype, static_cast<uint64_t>(value), bytes);
  return bytes;
}

std::string Pack(DType dtype, const std::vector<double>& values) {
  if (IsFloat(dtype)) return PackFloats(dtype, values);
  std::string bytes;
  for (const double value : values) {
    AppendBits(dtype, value < 0 ? static_cast<uint64_t>(static_cast<int64_t>(value)) : static_cast<uint64_t>(value),
               bytes);
  }
  return bytes;
}

double PowerOfTwo(int exponent) { return std::ldexp(1.0, exponent); }

}  // namespace sparseagg::testing
