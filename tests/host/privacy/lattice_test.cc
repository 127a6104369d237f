// Lattice and calibration of private sums.
#include "host/privacy/lattice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "tests/support/random.h"

namespace sparseagg::privacy {
namespace {

TEST(WideProduct, SmallProducts_AreExact) {
  EXPECT_EQ(static_cast<uint64_t>(WideProduct().Multiply(3.0).Multiply(0.75).Floor(0)), 2u);
  EXPECT_EQ(static_cast<uint64_t>(WideProduct().Multiply(3.0).Multiply(0.75).Ceil(0)), 3u);
  EXPECT_EQ(static_cast<uint64_t>(WideProduct().Multiply(3.0).Multiply(0.75).Ceil(2)), 9u);
  EXPECT_EQ(WideProduct().Multiply(8.0).FloorLog2(), 3);
  EXPECT_EQ(WideProduct().Multiply(8.0).CeilLog2(), 3);
  EXPECT_EQ(WideProduct().Multiply(9.0).FloorLog2(), 3);
  EXPECT_EQ(WideProduct().Multiply(9.0).CeilLog2(), 4);
  EXPECT_EQ(WideProduct().Multiply(0x1p-1000).CeilLog2(), -1000);
  EXPECT_EQ(static_cast<uint64_t>(WideProduct().Multiply(0x1p-1000).Floor(1010)), 1024u);
  EXPECT_EQ(static_cast<uint64_t>(WideProduct().Multiply(0x1p-1000).Ceil(0)), 1u);
}

TEST(WideProduct, FourFactors_AgreeWithLongIntegers) {
  testing::Rng rng(20261128);
  for (int i = 0; i < 2000; ++i) {
    // (a·b)² of 31-bit integers has 124 bits.
    const auto a = static_cast<double>(rng.Below(uint64_t{1} << 31) + 1);
    const auto b = static_cast<double>(rng.Below(uint64_t{1} << 31) + 1);
    const Uint128 root = Uint128{static_cast<uint64_t>(a)} * static_cast<uint64_t>(b);
    const WideProduct square = WideProduct().Multiply(a).Multiply(b).Multiply(a).Multiply(b);
    const int shift = static_cast<int>(rng.Below(124));
    const Uint128 exact = root * root;
    EXPECT_TRUE(square.Floor(0) == exact);
    EXPECT_TRUE(square.Floor(-shift) == exact >> shift);
    EXPECT_TRUE(square.Ceil(-shift) == (exact >> shift) + ((exact >> shift) << shift != exact ? 1 : 0));
  }
}

TEST(Lattice, UnitNorm_NoiseHas25Bits) {
  const Lattice lattice = MakeLattice(1.0, 1.0, 1.0, 1000);
  EXPECT_EQ(lattice.shift, 24);
  EXPECT_EQ(lattice.sigma, uint64_t{1} << 24);
  EXPECT_TRUE(lattice.norm_bound == Uint128{1} << 48);
  EXPECT_NEAR(lattice.effective_multiplier, 1.0, 1e-15);
}

TEST(Lattice, ManySubmissionsAndLittleNoise_NoSumLeaves62Bits) {
  const Lattice lattice = MakeLattice(0x1p-10, 1.0, 3.0, uint64_t{1} << 32);
  EXPECT_EQ(lattice.shift, 62 - 32 - 2);
  EXPECT_EQ(lattice.sigma, static_cast<uint64_t>(std::ceil(std::ldexp(3.0, 28 - 10))));
}

TEST(Lattice, AnyParameters_NoiseIsAtLeastWhatIsAsked) {
  testing::Rng rng(20261129);
  for (int i = 0; i < 5000; ++i) {
    const double z = std::ldexp(1.0 + rng.Unit(), static_cast<int>(rng.Between(-10, 9)));
    const double w = std::ldexp(1.0 + rng.Unit(), static_cast<int>(rng.Between(-200, 200)));
    const double c = std::ldexp(1.0 + rng.Unit(), static_cast<int>(rng.Between(-290, 290)));
    const uint64_t m = rng.Below(uint64_t{1} << rng.Between(1, 32)) + 1;
    const Lattice lattice = MakeLattice(z, w, c, m);
    EXPECT_GE(lattice.sigma, 1u);
    EXPECT_LE(lattice.sigma, uint64_t{1} << 25);
    // σ ≥ z·W·C·2^s, and σ − 1 is below that: in integers.
    const WideProduct asked = WideProduct().Multiply(z).Multiply(w).Multiply(c);
    EXPECT_TRUE(asked.Ceil(lattice.shift) == lattice.sigma);
    EXPECT_TRUE(asked.Floor(lattice.shift) <= lattice.sigma);
    EXPECT_GE(lattice.effective_multiplier, z * (1 - 1e-15));
    EXPECT_LE(lattice.effective_multiplier, z * (1 + 0x1p-15));
    // Σn² ≤ bound and M terms: |sum| ≤ M·√bound ≤ 2^62.
    const auto root = std::sqrt(static_cast<long double>(lattice.norm_bound));
    EXPECT_LE(root * static_cast<long double>(m), 0x1p62L * (1 + 1e-18L));
  }
}

}  // namespace
}  // namespace sparseagg::privacy
