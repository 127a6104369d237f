// Kernel bodies under the host executor: what the contract suite does not pin down by itself.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "cuda/kernels/number.h"
#include "host/base/half.h"
#include "tests/support/generators.h"
#include "tests/support/host_executor.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

using cuda::Number;

// ---- numbers

TEST(KernelNumbers, EveryPatternOfSixteenBits_WidensAsOnTheHost) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const double wide[] = {cuda::WidenFloat16(half), cuda::WidenBFloat16(half)};
    const double host[] = {WidenFloat16(half), WidenBFloat16(half)};
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(std::isnan(wide[i]) ? std::isnan(host[i])
                                      : std::bit_cast<uint64_t>(wide[i]) == std::bit_cast<uint64_t>(host[i]))
          << std::hex << bits;
    }
  }
}

// What the host's rounding gives, −0 made 0.
uint16_t WithoutMinusZero(uint16_t bits) { return bits == 0x8000 ? 0 : bits; }

void ExpectRoundsAsOnTheHost(double value) {
  ASSERT_EQ(cuda::RoundTo(Number::kFloat16, value), WithoutMinusZero(RoundToFloat16(value))) << std::hexfloat << value;
  ASSERT_EQ(cuda::RoundTo(Number::kBFloat16, value), WithoutMinusZero(RoundToBFloat16(value)))
      << std::hexfloat << value;
}

TEST(KernelNumbers, TiesAndTheirNeighbours_RoundAsOnTheHost) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (uint32_t bits = 0; bits < 0xffff; ++bits) {
    for (const auto widen : {cuda::WidenFloat16, cuda::WidenBFloat16}) {
      const double low = widen(static_cast<uint16_t>(bits));
      const double high = widen(static_cast<uint16_t>(bits + 1));
      const double tie = low / 2 + high / 2;
      for (const double value : {low, tie, std::nextafter(tie, -kInfinity), std::nextafter(tie, kInfinity)}) {
        ExpectRoundsAsOnTheHost(value);
      }
    }
  }
  for (const double value : {65519.999, 65520.0, 65520.001, 3.3961e38, 3.4e38, 1e300, 5e-324, -5e-324, 0x1p-25, 0x1p-26,
                             0x1.8p-25, -0x1p-134, 0x1.8p-134, kInfinity, -kInfinity, -0.0, std::nan("")}) {
    ExpectRoundsAsOnTheHost(value);
  }
}

TEST(KernelNumbers, RandomBits_RoundAsOnTheHost) {
  Rng rng(TestSeed(3));
  for (int i = 0; i < 300'000; ++i) {
    const uint64_t bits = rng.Bits();
    ExpectRoundsAsOnTheHost(std::bit_cast<double>(bits));
    // Exponents where the 16-bit types live.
    const uint64_t exponent = 1023 - 160 + rng.Below(320);
    ExpectRoundsAsOnTheHost(std::bit_cast<double>((bits & ~(uint64_t{0x7ff} << 52)) | exponent << 52));
  }
}

TEST(KernelNumbers, Float32AndFloat64_HaveOneNanAndNoMinusZero) {
  EXPECT_EQ(cuda::RoundTo(Number::kFloat32, -std::nan("1")), 0x7fc00000u);
  EXPECT_EQ(cuda::RoundTo(Number::kFloat64, -std::nan("1")), 0x7ff8000000000000u);
  EXPECT_EQ(cuda::RoundTo(Number::kFloat32, -0.0), 0u);
  EXPECT_EQ(cuda::RoundTo(Number::kFloat32, -1e-60), 0u) << "rounded to −0, which results never hold";
  EXPECT_EQ(cuda::RoundTo(Number::kFloat64, -0.0), 0u);
  EXPECT_EQ(cuda::RoundTo(Number::kFloat32, 0x1p-149), 1u) << "denormals are kept";
  EXPECT_EQ(cuda::RoundTo(Number::kFloat64, -5e-324), 0x8000000000000001u);
}

}  // namespace
}  // namespace sparseagg::testing
