// float16 and bfloat16: exact widening, and one correct rounding (to nearest, ties to even) from float64.
#ifndef SPARSEAGG_HOST_BASE_HALF_H_
#define SPARSEAGG_HOST_BASE_HALF_H_

#include <bit>
#include <cstdint>

namespace sparseagg {

inline float WidenBFloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline float WidenFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa · 2^-24, exact in float32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Rounds to a format of 16 bits with `kMantissaBits` stored bits and an exponent bias of `kBias`. A detour over float32
// would round twice. NaN becomes the canonical quiet NaN. Values beyond the format's range become infinity.
template <int kMantissaBits, int kBias>
uint16_t RoundToSixteenBits(double value) {
  constexpr uint32_t kExponentMax = (1u << (15 - kMantissaBits)) - 1;
  constexpr uint32_t kInfinity = kExponentMax << kMantissaBits;
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 48) & 0x8000u;
  const int biased = static_cast<int>((bits >> 52) & 0x7ff);
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  if (biased == 0x7ff) {
    return static_cast<uint16_t>(fraction != 0 ? kInfinity | (1u << (kMantissaBits - 1)) : sign | kInfinity);
  }
  // A float64 subnormal lies far below half of the smallest value here.
  if (biased == 0) return static_cast<uint16_t>(sign);
  int exponent = biased - 1023 + kBias;
  int shift = 52 - kMantissaBits;
  const uint64_t significand = fraction | (uint64_t{1} << 52);
  if (exponent <= 0) {  // subnormal in the target: the unit is fixed
    shift += 1 - exponent;
    exponent = 0;
    if (shift > 54) return static_cast<uint16_t>(sign);
  }
  uint64_t rounded = significand >> shift;
  const uint64_t rest = significand & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  // A carry out of the significand increments the exponent: the value is rounded up to the next binade.
  const uint64_t magnitude = exponent == 0 ? rounded : (static_cast<uint64_t>(exponent - 1) << kMantissaBits) + rounded;
  if (magnitude >= kInfinity) return static_cast<uint16_t>(sign | kInfinity);
  return static_cast<uint16_t>(sign | magnitude);
}

inline uint16_t RoundToFloat16(double value) { return RoundToSixteenBits<10, 15>(value); }
inline uint16_t RoundToBFloat16(double value) { return RoundToSixteenBits<7, 127>(value); }

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_HALF_H_
