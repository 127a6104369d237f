// The sampler of the discrete Gaussian, against its exact probabilities.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "host/privacy/noise.h"
#include "tests/host/privacy/chi_squared.h"

namespace sparseagg::privacy {
namespace {

using testing::ChiSquaredDeviations;

constexpr double kMostDeviations = 6.0;  // α < 1e-9

// SPARSEAGG_SAMPLES: how many samples a test draws, for long runs.
uint64_t NumSamples() {
  const char* const given = std::getenv("SPARSEAGG_SAMPLES");
  return given == nullptr ? 1'000'000 : std::strtoull(given, nullptr, 10);
}

Bytes32 Seed(uint8_t seed) {
  Bytes32 key{};
  key[0] = seed;
  return key;
}

struct Sigma {
  uint64_t numerator;
  uint64_t denominator;
  double value() const { return static_cast<double>(numerator) / static_cast<double>(denominator); }
};

class DiscreteGaussianOf : public ::testing::TestWithParam<Sigma> {};

TEST_P(DiscreteGaussianOf, ManySamples_HaveTheExactProbabilities) {
  const double sigma = GetParam().value();
  const auto reach = static_cast<int64_t>(std::ceil(12 * sigma)) + 2;
  std::vector<double> probabilities;
  double total = 0.0;
  for (int64_t x = -reach; x <= reach; ++x) {
    const auto at = static_cast<double>(x);
    probabilities.push_back(std::exp(-at * at / (2 * sigma * sigma)));
    total += probabilities.back();
  }
  for (double& probability : probabilities) probability /= total;
  const DiscreteGaussian gaussian(GetParam().numerator, GetParam().denominator);
  const Bytes32 key = Seed(17);
  const uint64_t num_samples = NumSamples();
  std::vector<uint64_t> counts(probabilities.size());
  for (uint64_t i = 0; i < num_samples; ++i) {
    NoiseStream stream(key, i);
    const int64_t sample = gaussian.Sample(stream);
    ASSERT_LE(std::abs(sample), reach);
    ++counts[static_cast<size_t>(sample + reach)];
  }
  EXPECT_LT(ChiSquaredDeviations(counts, probabilities, static_cast<double>(num_samples)), kMostDeviations)
      << "seed 17, sigma " << sigma;
}

INSTANTIATE_TEST_SUITE_P(Sigmas, DiscreteGaussianOf,
                         ::testing::Values(Sigma{1, 1}, Sigma{3, 1}, Sigma{10, 1}, Sigma{1, 3}, Sigma{1597, 1024}),
                         [](const auto& test) {
                           return std::to_string(test.param.numerator) + "_" + std::to_string(test.param.denominator);
                         });

// A deviation of the size of private sums, and the largest that there is: bins of equal probability.
TEST(DiscreteGaussian, LargeSigmas_SplitBinsOfANormalDistribution) {
  for (const uint64_t sigma : {(uint64_t{1} << 24) + 12345, DiscreteGaussian::kMaxTerm}) {
    const DiscreteGaussian gaussian(sigma);
    constexpr int kBins = 64;
    std::vector<double> probabilities(kBins, 1.0 / kBins);
    std::vector<uint64_t> counts(kBins);
    const Bytes32 key = Seed(18);
    NoiseStream stream(key, sigma);
    const uint64_t num_samples = NumSamples() / 4;
    for (uint64_t i = 0; i < num_samples; ++i) {
      const double z = (static_cast<double>(gaussian.Sample(stream)) + 0.5) / static_cast<double>(sigma);
      const double below = 0.5 * std::erfc(-z / std::sqrt(2.0));
      ++counts[std::min(kBins - 1, static_cast<int>(below * kBins))];
    }
    EXPECT_LT(ChiSquaredDeviations(counts, probabilities, static_cast<double>(num_samples)), kMostDeviations)
        << "seed 18, sigma " << sigma;
  }
}

TEST(BernoulliExp, ManyDraws_HaveTheProbability) {
  const Bytes32 key = Seed(19);
  NoiseStream stream(key, 0);
  const Uint128 wide = Uint128{1} << 106;
  struct Case {
    Uint128 numerator;
    Uint128 denominator;
    double gamma;
  };
  for (const Case& c : {Case{0, 5, 0.0}, Case{1, 2, 0.5}, Case{1, 1, 1.0}, Case{7, 2, 3.5}, Case{wide / 4, wide, 0.25},
                        Case{wide + wide / 2, wide, 1.5}}) {
    const double expected = std::exp(-c.gamma);
    const double num_draws = 200000;
    int hits = 0;
    for (int i = 0; i < num_draws; ++i) hits += BernoulliExp(c.numerator, c.denominator, stream) ? 1 : 0;
    const double deviation = std::sqrt(num_draws * expected * (1 - expected));
    EXPECT_NEAR(hits, num_draws * expected, 6.2 * deviation) << "seed 19, gamma " << c.gamma;
  }
}

}  // namespace
}  // namespace sparseagg::privacy
