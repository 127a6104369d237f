// float16 and bfloat16, on a GPU too: exact widening, and one correct rounding (to nearest, ties to even) from float64.
#ifndef SPARSEAGG_HOST_BASE_HALF_H_
#define SPARSEAGG_HOST_BASE_HALF_H_

#include <cstdint>

#include "host/base/host_device.h"

namespace sparseagg {

SPARSEAGG_HD inline float WidenBFloat16(uint16_t bits) { return BitsAs<float>(static_cast<uint32_t>(bits) << 16); }

SPARSEAGG_HD inline float WidenFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa · 2^-24, exact in float32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return BitsAs<float>(sign | BitsAs<uint32_t>(magnitude));
  }
  if (exponent == 0x1f) return BitsAs<float>(sign | 0x7f800000u | (mantissa << 13));
  return BitsAs<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Rounds to a format of 16 bits with `kMantissaBits` stored bits and an exponent bias of `kBias`. A detour over float32
// would round twice. NaN becomes the canonical quiet NaN. Values beyond the format's range become infinity.
template <int kMantissaBits, int kBias>
SPARSEAGG_HD uint16_t RoundToSixteenBits(double value) {
  constexpr int kExponentMax = (1 << (15 - kMantissaBits)) - 1;
  constexpr uint32_t kInfinity = static_cast<uint32_t>(kExponentMax) << kMantissaBits;
  if (value != value) return static_cast<uint16_t>(kInfinity | (1u << (kMantissaBits - 1)));
  const auto bits = BitsAs<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 48) & 0x8000u;
  const int exponent = static_cast<int>((bits >> 52) & 0x7ff) - 1023 + kBias;  // in the target; ≤ 0: subnormal there
  if (exponent >= kExponentMax) return static_cast<uint16_t>(sign | kInfinity);
  // Bits to drop from the 53 of the significand: more where the target is subnormal.
  const int drop = 52 - kMantissaBits + (exponent > 0 ? 0 : 1 - exponent);
  if (drop > 53) return static_cast<uint16_t>(sign);  // below half of the smallest subnormal
  const uint64_t significand = (bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
  const uint64_t half = uint64_t{1} << (drop - 1);
  uint64_t kept = significand >> drop;
  const uint64_t rest = significand - (kept << drop);
  if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  // The hidden bit adds one to the exponent field, and so does a carry, also to infinity.
  const uint64_t magnitude = exponent > 0 ? (static_cast<uint64_t>(exponent - 1) << kMantissaBits) + kept : kept;
  return static_cast<uint16_t>(sign | magnitude);
}

SPARSEAGG_HD inline uint16_t RoundToFloat16(double value) { return RoundToSixteenBits<10, 15>(value); }
SPARSEAGG_HD inline uint16_t RoundToBFloat16(double value) { return RoundToSixteenBits<7, 127>(value); }

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_HALF_H_
