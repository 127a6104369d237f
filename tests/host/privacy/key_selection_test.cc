// Thresholds and probabilities of the keys of private results.
#include "host/privacy/key_selection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace sparseagg::privacy {
namespace {

TensorPrivacy Gaussian(KeySelection keys, double multiplier, double delta) {
  TensorPrivacy privacy;
  privacy.keys = keys;
  privacy.key_noise_multiplier = multiplier;
  privacy.key_delta = delta;
  return privacy;
}

double Tail(double z) { return 0.5 * std::erfc(z / std::sqrt(2.0)); }

TEST(NormalQuantile, KnownValues) {
  EXPECT_NEAR(NormalQuantile(0.5, 1), 0.0, 1e-8);
  EXPECT_NEAR(NormalQuantile(0.025, 1), 1.959963984540054, 1e-8);
  EXPECT_NEAR(NormalQuantile(1e-6, 1), 4.753424308822899, 1e-8);
  const double z = NormalQuantile(1e-6, 5000);
  EXPECT_LE(-std::expm1(5000 * std::log1p(-Tail(z))), 1e-6 * (1 + 1e-9));
  EXPECT_NEAR(Tail(z) * 5000, 1e-6, 1e-11);
}

TEST(KeyWeight, AnyNumberOfKeys_SquaresAddUpToAtMostTheUnit) {
  const uint64_t unit = uint64_t{1} << 40;
  for (uint64_t m = 1; m < 3000; ++m) {
    const auto weight = static_cast<uint64_t>(KeyWeight(KeySelection::kWeightedGaussian, m));
    EXPECT_LE(m * weight * weight, unit) << m;
    EXPECT_GT(m * (weight + 1) * (weight + 1), unit) << m;
    EXPECT_EQ(KeyWeight(KeySelection::kCountGaussian, m), 1);
  }
}

// The price that docs/privacy.md names: contributors of 5000 keys each, for one key.
TEST(KeyRule, WeightedGaussian_FiveThousandKeys_NeedsAbout443Contributors) {
  const KeyRule rule(Gaussian(KeySelection::kWeightedGaussian, 1.0, 1e-6), 5000, 1);
  const double contributors =
      static_cast<double>(rule.threshold()) / static_cast<double>(KeyWeight(KeySelection::kWeightedGaussian, 5000));
  EXPECT_NEAR(contributors, 443.0, 4.0);
}

TEST(KeyRule, WeightedGaussian_ExclusiveKeysOfOneSubmission_AreKeptWithDeltaAtMost) {
  for (const double delta : {1e-2, 1e-6, 1e-10}) {
    for (const uint64_t max_keys : {uint64_t{1}, uint64_t{3}, uint64_t{100}, uint64_t{5000}, uint64_t{1} << 20}) {
      const KeyRule rule(Gaussian(KeySelection::kWeightedGaussian, 0.5, delta), max_keys, 1);
      const double sigma = static_cast<double>(rule.sigma_numerator());
      double worst = 0.0;
      for (uint64_t j = 1; j <= max_keys; j = j < 2000 ? j + 1 : j + j / 100) {
        const auto score = static_cast<double>(KeyWeight(KeySelection::kWeightedGaussian, j));
        const double one = Tail((static_cast<double>(rule.threshold()) - 1 - score) / sigma);
        worst = std::max(worst, -std::expm1(static_cast<double>(j) * std::log1p(-one)));
      }
      EXPECT_LE(worst, delta) << max_keys;
      EXPECT_GE(worst, 0.8 * delta) << max_keys;  // and not much less: that would cost keys
    }
  }
}

TEST(KeyRule, CountGaussian_NoiseCoversAllKeysOfASubmission) {
  for (const uint64_t max_keys : {1, 7, 1000}) {
    const KeyRule rule(Gaussian(KeySelection::kCountGaussian, 1.5, 1e-6), max_keys, 1);
    const double sigma = static_cast<double>(rule.sigma_numerator()) / static_cast<double>(rule.sigma_denominator());
    EXPECT_GE(sigma, 1.5 * std::sqrt(static_cast<double>(max_keys)) * (1 - 1e-15));
    EXPECT_NEAR(sigma, 1.5 * std::sqrt(static_cast<double>(max_keys)), 0x1p-10);
    const double one = Tail((static_cast<double>(rule.threshold()) - 2) / sigma);
    EXPECT_LE(-std::expm1(static_cast<double>(max_keys) * std::log1p(-one)), 1e-6);
  }
}

TEST(KeyRule, MinContributors_RaisesTheThresholdByTheOthers) {
  const auto threshold = [](KeySelection keys, uint32_t least) {
    return KeyRule(Gaussian(keys, 1.0, 1e-6), 10, least).threshold();
  };
  EXPECT_EQ(threshold(KeySelection::kWeightedGaussian, 5),
            threshold(KeySelection::kWeightedGaussian, 1) + (int64_t{4} << 20));
  EXPECT_EQ(threshold(KeySelection::kCountGaussian, 5), threshold(KeySelection::kCountGaussian, 1) + 4);
  const KeyRule rule(Gaussian(KeySelection::kCountGaussian, 1.0, 1e-6), 10, 5);
  const Bytes32 key{};
  for (uint64_t row = 0; row < 100; ++row) {
    NoiseStream stream(key, row);
    int64_t noisy = 0;
    EXPECT_FALSE(rule.Keeps(1000, 4, stream, noisy));
  }
}

}  // namespace
}  // namespace sparseagg::privacy
