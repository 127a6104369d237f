// Arithmetic of the kernels, by what the formats mean.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "cuda/kernels/number.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Format {
  DType type;
  int mantissa_bits;
  int bias;
  uint32_t infinity;
};
constexpr Format kHalves[] = {{DType::kFloat16, 10, 15, 0x7c00}, {DType::kBFloat16, 7, 127, 0x7f80}};

TEST(KernelNumbers, EveryPatternOfSixteenBits_WidensToWhatItMeans) {
  for (const auto& [type, mantissa_bits, bias, infinity] : kHalves) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const uint32_t magnitude = bits & 0x7fff;
      const int exponent = static_cast<int>(magnitude >> mantissa_bits);
      const uint32_t mantissa = magnitude - (static_cast<uint32_t>(exponent) << mantissa_bits);
      double expected = std::ldexp(exponent == 0 ? mantissa : mantissa + (1u << mantissa_bits),
                                   std::max(exponent, 1) - bias - mantissa_bits);
      if (magnitude >= infinity) expected = mantissa == 0 ? kInfinity : std::nan("");
      if (bits >= 0x8000) expected = -expected;
      const double wide = cuda::FloatOf(type, bits);
      EXPECT_TRUE(std::isnan(wide) ? std::isnan(expected)
                                   : std::bit_cast<uint64_t>(wide) == std::bit_cast<uint64_t>(expected))
          << std::hex << bits;
    }
  }
}

// Each finite value, the tie above it, its neighbours and random values between them, of both signs; the result has no
// −0.
TEST(KernelNumbers, ValuesAndTies_RoundToTheNearest) {
  const uint64_t seed = TestSeed(3);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (const auto& [type, mantissa_bits, bias, infinity] : kHalves) {
    const auto expect = [type = type](double value, uint32_t bits) {
      ASSERT_EQ(cuda::RoundTo(type, value), bits) << std::hexfloat << value;
      ASSERT_EQ(cuda::RoundTo(type, -value), bits == 0 ? 0 : bits | 0x8000) << std::hexfloat << -value;
    };
    for (uint32_t bits = 0; bits < infinity; ++bits) {
      const double low = cuda::FloatOf(type, bits);
      const double unit = std::ldexp(1.0, std::max(static_cast<int>(bits >> mantissa_bits), 1) - bias - mantissa_bits);
      const double tie = low + unit / 2;
      expect(low, bits);
      expect(low + rng.Unit() * 0.49 * unit, bits);
      expect(std::nextafter(tie, 0.0), bits);
      expect(tie, bits + (bits & 1));
      expect(std::nextafter(tie, kInfinity), bits + 1);
      expect(tie + rng.Unit() * 0.49 * unit + 0.001 * unit, bits + 1);
    }
    expect(5e-324, 0);
    expect(1e300, infinity);
    expect(kInfinity, infinity);
    EXPECT_EQ(cuda::RoundTo(type, -std::nan("1")), infinity | 1u << (mantissa_bits - 1));
  }
}

TEST(KernelNumbers, Float32AndFloat64_HaveOneNanAndNoMinusZero) {
  EXPECT_EQ(cuda::RoundTo(DType::kFloat32, -std::nan("1")), 0x7fc00000u);
  EXPECT_EQ(cuda::RoundTo(DType::kFloat64, -std::nan("1")), 0x7ff8000000000000u);
  EXPECT_EQ(cuda::RoundTo(DType::kFloat32, -0.0), 0u);
  EXPECT_EQ(cuda::RoundTo(DType::kFloat32, -1e-60), 0u) << "rounded to −0, which results never hold";
  EXPECT_EQ(cuda::RoundTo(DType::kFloat64, -0.0), 0u);
  EXPECT_EQ(cuda::RoundTo(DType::kFloat32, 0x1p-149), 1u) << "denormals are kept";
  EXPECT_EQ(cuda::RoundTo(DType::kFloat64, -5e-324), 0x8000000000000001u);
}

}  // namespace
}  // namespace sparseagg::testing
