// Lattice, calibration and terms of private sums: truncation, and the exact sensitivity.
#include "host/privacy/terms.h"

#include <gtest/gtest.h>

#include <boost/multiprecision/cpp_int.hpp>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "host/clip/clip.h"
#include "host/privacy/key_selection.h"
#include "host/privacy/lattice.h"
#include "tests/host/privacy/private_specs.h"
#include "tests/support/random.h"

namespace sparseagg::privacy {
namespace {

using testing::GaussianKeys;
using testing::PrivateTensor;
using testing::PublicKeys;
using testing::Resolved;
using testing::Rng;
using testing::UpdateOf;

std::vector<int64_t> TermsOf(const TensorSpec& spec, const ValidatedUpdate& update) {
  const auto* const terms = reinterpret_cast<const int64_t*>(update.values());
  return {terms, terms + update.num_keys() * SumSpec(spec).row_width};
}

Uint128 SquaredNorm(const std::vector<int64_t>& terms) {
  Uint128 sum = 0;
  for (const int64_t term : terms) sum += static_cast<Uint128>(Int128{term} * term);
  return sum;
}

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
  Rng rng(20261128);
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
  Rng rng(20261129);
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

TEST(Terms, Values_AreTruncatedTowardsZero) {
  const std::vector<TensorSpec> specs = Resolved({PrivateTensor()}, PublicKeys());
  const Lattice lattice = LatticeOf(specs[0]);
  ASSERT_EQ(lattice.shift, 24);
  std::vector<ValidatedUpdate> updates = {UpdateOf(specs[0], {3, 5, 9}, {0x1.9p-24, -0x1.9p-24, -0x1.fp-25})};
  ASSERT_TRUE(MakeTerms(specs, lattice, updates).ok());
  EXPECT_EQ(TermsOf(specs[0], updates[0]), (std::vector<int64_t>{1, -1, 0}));
}

TEST(Terms, RepeatedKeys_AreAddedBeforeTruncation) {
  const std::vector<TensorSpec> specs = Resolved({PrivateTensor()}, PublicKeys());
  std::vector<ValidatedUpdate> updates = {UpdateOf(specs[0], {9, 3, 9}, {0x1p-25, 0x1p-20, 0x1p-25})};
  ASSERT_TRUE(ApplyClips(specs, updates).ok());
  ASSERT_TRUE(MakeTerms(specs, LatticeOf(specs[0]), updates).ok());
  EXPECT_TRUE(updates[0].unique());
  EXPECT_EQ(KeyAt(updates[0].keys(), 0), 3u);
  EXPECT_EQ(KeyAt(updates[0].keys(), 1), 9u);
  EXPECT_EQ(TermsOf(specs[0], updates[0]), (std::vector<int64_t>{16, 1}));
}

TEST(Terms, WeightedKeys_HaveAScoreForTheirNumber) {
  const auto privacy = GaussianKeys(KeySelection::kWeightedGaussian, 1.0, 1.0, 1e-6);
  const std::vector<TensorSpec> specs = Resolved({PrivateTensor("t", 2)}, privacy, 1.0, 10);
  std::vector<ValidatedUpdate> updates = {UpdateOf(specs[0], {1, 2, 3, 4}, {0, 0, 0, 0, 0, 0, 0x1p-24, 0x1p-23})};
  ASSERT_TRUE(MakeTerms(specs, LatticeOf(specs[0]), updates).ok());
  const int64_t half = 1 << 19;
  EXPECT_EQ(TermsOf(specs[0], updates[0]), (std::vector<int64_t>{0, 0, half, 0, 0, half, 0, 0, half, 1, 2, half}));
}

// A norm that is too long by more than roundings: only the check in integers sees it.
TEST(Terms, NormBeyondTheBound_IsRepaired) {
  const std::vector<TensorSpec> specs = Resolved({PrivateTensor()}, PublicKeys(0x1p-10));
  const Lattice lattice = LatticeOf(specs[0]);
  std::vector<ValidatedUpdate> updates = {UpdateOf(specs[0], {3, 5}, {0.6 * (1 + 0x1p-29), 0.8 * (1 + 0x1p-29)})};
  ASSERT_TRUE(MakeTerms(specs, lattice, updates).ok());
  const std::vector<int64_t> terms = TermsOf(specs[0], updates[0]);
  EXPECT_TRUE(SquaredNorm(terms) <= lattice.norm_bound);
  EXPECT_NEAR(std::ldexp(static_cast<double>(terms[0]), -lattice.shift), 0.6, 1e-8);
}

// Powers of two, for which the bound is one, too: exact without the code under test.
TEST(Terms, RandomNeighbours_DifferByTheSensitivityAtMost) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    const int log_l2 = static_cast<int>(rng.Between(-490, 490));
    const int log_weight = static_cast<int>(rng.Between(-9, 9));
    const int log_z = static_cast<int>(rng.Between(-10, 8));
    std::vector<TensorSpec> tensors = {PrivateTensor("a", 3), PrivateTensor("b", 1)};
    for (TensorSpec& spec : tensors) spec.aggregation.weighting = Weighting::kByWeight;
    PrivacySpec privacy = PublicKeys(std::ldexp(1.0, log_z));
    privacy.weight_bound = std::ldexp(1.0, log_weight);
    const std::vector<TensorSpec> specs = Resolved(tensors, privacy, std::ldexp(1.0, log_l2));
    const Lattice lattice = LatticeOf(specs[0]);
    const int log_bound = log_l2 + log_weight + lattice.shift;
    ASSERT_TRUE(lattice.norm_bound == Uint128{1} << (2 * log_bound)) << "seed " << seed;
    ASSERT_EQ(lattice.sigma, static_cast<uint64_t>(std::ldexp(1.0, log_bound + log_z)));
    // A submission of any length: far beyond the bound, at it, or below.
    const double length = std::ldexp(1.0, log_l2 + static_cast<int>(rng.Between(-3, 5)));
    std::vector<ValidatedUpdate> updates;
    const double weight = rng.Coin() ? std::ldexp(1.0, log_weight) : std::ldexp(rng.Unit(), log_weight);
    for (const TensorSpec& spec : specs) {
      std::vector<uint32_t> keys;
      std::vector<double> values;
      for (uint32_t key = 0; key < 50; ++key) keys.push_back(static_cast<uint32_t>(rng.Below(60)));
      for (size_t i = 0; i < keys.size() * spec.row_width; ++i) values.push_back((rng.Unit() - 0.5) * length);
      updates.push_back(UpdateOf(spec, keys, values, weight));
    }
    ASSERT_TRUE(ApplyClips(specs, updates).ok());
    ASSERT_TRUE(MakeTerms(specs, lattice, updates).ok());
    Uint128 sum = 0;
    for (size_t t = 0; t < specs.size(); ++t) sum += SquaredNorm(TermsOf(specs[t], updates[t]));
    EXPECT_TRUE(sum <= lattice.norm_bound) << "seed " << seed;
    if (weight == std::ldexp(1.0, log_weight) && length >= std::ldexp(1.0, log_l2 + 1)) {
      EXPECT_GT(std::sqrt(static_cast<double>(sum)), 0.99 * std::ldexp(1.0, log_bound)) << "seed " << seed;
    }
  }
}

using LongInteger = boost::multiprecision::cpp_int;

// Returns: m and e of x = m·2^e.
std::pair<LongInteger, int> Parts(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return {LongInteger(static_cast<int64_t>(std::ldexp(fraction, 53))), exponent - 53};
}

// Σn² ≤ (W·C·2^s)² of any W and C, in long integers.
TEST(Terms, RandomBounds_SensitivityHoldsInLongIntegers) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Rng rng(seed);
    const double l2 = std::ldexp(1.0 + rng.Unit(), static_cast<int>(rng.Between(-490, 480)));
    const double weight_bound = std::ldexp(1.0 + rng.Unit(), static_cast<int>(rng.Between(-9, 9)));
    TensorSpec tensor = PrivateTensor("a", 2);
    tensor.aggregation.weighting = Weighting::kByWeight;
    PrivacySpec privacy = PublicKeys(std::ldexp(1.0, rng.Coin() ? -10 : 0));
    privacy.weight_bound = weight_bound;
    const std::vector<TensorSpec> specs = Resolved({tensor}, privacy, l2);
    const Lattice lattice = LatticeOf(specs[0]);
    std::vector<uint32_t> keys;
    std::vector<double> values;
    // Few values, and many of the same size: the worst cases of roundings.
    const uint32_t num_keys = static_cast<uint32_t>(rng.Pick({1, 2, 7, 500}));
    for (uint32_t key = 0; key < num_keys; ++key) keys.push_back(key);
    for (uint32_t i = 0; i < 2 * num_keys; ++i) values.push_back(l2 * (rng.Coin() ? 1.0 : rng.Unit()));
    values[0] = l2;  // the bound is reached in any case
    std::vector<ValidatedUpdate> updates = {UpdateOf(specs[0], keys, values, weight_bound)};
    ASSERT_TRUE(ApplyClips(specs, updates).ok());
    ASSERT_TRUE(MakeTerms(specs, lattice, updates).ok());
    LongInteger sum = 0;
    for (const int64_t term : TermsOf(specs[0], updates[0])) sum += LongInteger(term) * term;
    const auto [m, e] = Parts(l2);
    const auto [n, f] = Parts(weight_bound);
    LongInteger bound = m * m * n * n;  // · 2^(2·(e + f + s))
    const int shift = 2 * (e + f + lattice.shift);
    shift >= 0 ? bound <<= shift : sum <<= -shift;
    EXPECT_LE(sum, bound) << "seed " << seed;
    EXPECT_GE(sum * 101, bound * 100) << "seed " << seed << ": the bound is far from reached";
  }
}

TEST(Terms, Digest_ChangesWithEveryKeyAndTerm) {
  const std::vector<TensorSpec> specs = Resolved({PrivateTensor()}, PublicKeys());
  const auto digest = [&](std::vector<uint32_t> keys, std::vector<double> values) {
    std::vector<ValidatedUpdate> updates = {UpdateOf(specs[0], std::move(keys), std::move(values))};
    EXPECT_TRUE(ApplyClips(specs, updates).ok());
    return *MakeTerms(specs, LatticeOf(specs[0]), updates);
  };
  const Bytes32 first = digest({1, 2}, {0.25, 0.5});
  EXPECT_EQ(first, digest({2, 1}, {0.5, 0.25}));
  EXPECT_NE(first, digest({1, 3}, {0.25, 0.5}));
  EXPECT_NE(first, digest({1, 2}, {0.25, 0.5 + 0x1p-24}));
  EXPECT_NE(first, digest({1}, {0.25}));
}

}  // namespace
}  // namespace sparseagg::privacy
