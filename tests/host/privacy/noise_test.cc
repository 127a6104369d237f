// The noise: its stream of random bits, its keys, and the distribution of its samples.
#include "host/privacy/noise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"

namespace sparseagg::privacy {
namespace {

std::string Hex(const void* bytes, size_t size) {
  return absl::BytesToHexString(absl::string_view(static_cast<const char*>(bytes), size));
}

Bytes32 KeyOf(uint8_t first) {
  Bytes32 key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(first + i);
  return key;
}

TEST(ChaCha20, Rfc8439_BlockFunction_Section232) {
  uint8_t block[64];
  ChaCha20(KeyOf(0), {0, 0, 0, 9, 0, 0, 0, 0x4a, 0, 0, 0, 0}, 1, block, sizeof(block));
  EXPECT_EQ(Hex(block, 64),
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e");
}

TEST(ChaCha20, Rfc8439_KeyStream_AppendixA1) {
  const Bytes32 zero{};
  uint8_t blocks[128];
  ChaCha20(zero, {}, 0, blocks, sizeof(blocks));
  EXPECT_EQ(Hex(blocks, 64),
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586");
  EXPECT_EQ(Hex(blocks + 64, 64),
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f");
}

TEST(NoiseStream, Row_IsTheNonce_AndBlocksFollow) {
  const Bytes32 key = KeyOf(7);
  const uint64_t row = 0x0123456789abcdef;
  uint8_t expected[1024];
  ChaCha20(key, {0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 0, 0, 0, 0}, 0, expected, sizeof(expected));
  NoiseStream stream(key, row);
  for (size_t at = 0; at < sizeof(expected);) {
    if (at % 3 == 0) {
      ASSERT_EQ(stream.Next8(), expected[at]) << at;
      at += 1;
    } else {
      if (at + 8 > sizeof(expected)) break;
      uint64_t number = 0;
      for (int i = 0; i < 8; ++i) number |= uint64_t{expected[at + i]} << (8 * i);
      ASSERT_EQ(stream.Next64(), number) << at;
      at += 8;
    }
  }
}

TEST(NoiseStream, Below_AnyBound_IsInRangeAndCoversIt) {
  const Bytes32 key = KeyOf(1);
  NoiseStream stream(key, 0);
  EXPECT_EQ(stream.Below(1), 0u);
  for (const uint64_t bound : {2, 3, 255, 256, 257, 1000}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 40 * bound; ++i) seen.insert(static_cast<uint64_t>(stream.Below(bound)));
    EXPECT_EQ(*seen.rbegin(), bound - 1);
    EXPECT_EQ(seen.size(), bound);
  }
  // Above 64 bits: half of the numbers are in the upper half, within six deviations.
  const Uint128 bound = (Uint128{1} << 100) + 12345;
  int upper = 0;
  for (int i = 0; i < 10000; ++i) {
    const Uint128 number = stream.Below(bound);
    ASSERT_LT(number, bound);
    upper += number >= bound / 2 ? 1 : 0;
  }
  EXPECT_NEAR(upper, 5000, 300);
}

TEST(Hkdf, Rfc5869_TestCases1And3) {
  const std::string key(22, '\x0b');
  EXPECT_EQ(Hex(Hkdf(key, absl::HexStringToBytes("000102030405060708090a0b0c"),
                     absl::HexStringToBytes("f0f1f2f3f4f5f6f7f8f9"), 42)
                    .data(),
                42),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  EXPECT_EQ(Hex(Hkdf(key, "", "", 42).data(), 42),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
}

TEST(Sha256, Abc_IsFips180) {
  Sha256 hash;
  hash.Add("abc", 3);
  EXPECT_EQ(Hex(hash.Finish().data(), 32), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// Computed by Python's hmac, by the derivation in tests/python/private_rounds.py.
TEST(RoundKey, IsHkdfOfItsInputs) {
  const NoiseSource source{std::string(32, 'k'), "tenant", "round", std::string(16, 'i')};
  EXPECT_EQ(Hex(DeriveRoundKey(source, KeyOf(1), KeyOf(2)).data(), 32),
            "c929f14c310e8bc5bef43ae7c5fc657c4ad19c8f8aa8f8d3a9300ba19cd4a156");
}

TEST(RoundKey, EveryInput_ChangesIt) {
  const std::string id(16, 'i');
  const NoiseSource source{std::string(32, 'k'), "tenant", "round", id};
  std::set<Bytes32> keys = {DeriveRoundKey(source, KeyOf(1), KeyOf(2))};
  keys.insert(DeriveRoundKey({std::string(32, 'l'), "tenant", "round", id}, KeyOf(1), KeyOf(2)));
  keys.insert(DeriveRoundKey({std::string(32, 'k'), "tenan", "tround", id}, KeyOf(1), KeyOf(2)));
  keys.insert(DeriveRoundKey({std::string(32, 'k'), "tenant", "round2", id}, KeyOf(1), KeyOf(2)));
  keys.insert(DeriveRoundKey({std::string(32, 'k'), "tenant", "round", std::string(16, 'j')}, KeyOf(1), KeyOf(2)));
  keys.insert(DeriveRoundKey({std::string(32, 'k'), "tenant", "round"}, KeyOf(1), KeyOf(2)));
  keys.insert(DeriveRoundKey(source, KeyOf(2), KeyOf(2)));
  keys.insert(DeriveRoundKey(source, KeyOf(1), KeyOf(3)));
  EXPECT_EQ(keys.size(), 8u);
  EXPECT_EQ(keys.count(DeriveRoundKey(source, KeyOf(1), KeyOf(2))), 1u);
  std::set<Bytes32> streams = {
      DeriveStreamKey(KeyOf(1), NoisePurpose::kValues, "a"), DeriveStreamKey(KeyOf(1), NoisePurpose::kKeys, "a"),
      DeriveStreamKey(KeyOf(1), NoisePurpose::kValues, "b"), DeriveStreamKey(KeyOf(2), NoisePurpose::kValues, "a")};
  EXPECT_EQ(streams.size(), 4u);
}

// ---- The sampler of the discrete Gaussian, against its exact probabilities.

// χ² of counts against probabilities of a sum of 1; cells with fewer than 20 expected are taken together. Returns: how
// many deviations of a normal distribution the statistic is above its mean (Wilson and Hilferty's approximation). Above
// 6.0 has a probability below 1e-9.
double ChiSquaredDeviations(const std::vector<uint64_t>& counts, const std::vector<double>& probabilities,
                            double num_samples) {
  double statistic = 0.0;
  double rest_expected = 0.0;
  double rest_count = 0.0;
  int num_cells = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++num_cells;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * num_samples;
    if (expected < 20.0) {
      rest_expected += expected;
      rest_count += static_cast<double>(counts[i]);
    } else {
      add(static_cast<double>(counts[i]), expected);
    }
  }
  if (rest_expected >= 1.0 || rest_count > rest_expected + 40.0) add(rest_count, rest_expected);
  const double freedom = num_cells - 1;
  const double spread = 2.0 / (9.0 * freedom);
  return (std::cbrt(statistic / freedom) - (1.0 - spread)) / std::sqrt(spread);
}

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
