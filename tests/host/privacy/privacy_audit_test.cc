// An audit: many runs of the mechanism on two neighbouring inputs, and the least ε that what they show is possible
// with. It is below the claim for the mechanism, and above it for mechanisms with a fault of the kind that audits are
// for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "host/clip/clip.h"
#include "host/privacy/key_selection.h"
#include "host/privacy/noise.h"
#include "host/privacy/terms.h"
#include "tests/host/privacy/private_specs.h"

namespace sparseagg::privacy {
namespace {

using testing::PrivateTensor;
using testing::PublicKeys;
using testing::Resolved;
using testing::UpdateOf;

constexpr double kAlpha = 1e-9;  // of each bound
constexpr double kDelta = 1e-5;

uint64_t NumRuns() {
  const char* const given = std::getenv("SPARSEAGG_AUDIT_RUNS");
  return given == nullptr ? 500'000 : std::strtoull(given, nullptr, 10);
}

// log P[Bin(n, p) ≤ k] or ≥ k, by the sum of its terms from k outwards.
double LogTail(double k, double n, double p, bool upper) {
  const auto log_term = [&](double i) {
    return std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) + i * std::log(p) +
           (n - i) * std::log1p(-p);
  };
  const double first = log_term(k);
  double sum = 0.0;
  for (double i = k; i >= 0 && i <= n; i += upper ? 1 : -1) {
    const double relative = std::exp(log_term(i) - first);
    sum += relative;
    if (relative < 1e-17 * sum) break;
  }
  return first + std::log(sum);
}

// The bounds of Clopper and Pearson of a probability with `k` hits in `n` runs.
double Bound(double k, double n, bool upper) {
  if (upper ? k >= n : k <= 0) return upper ? 1.0 : 0.0;
  double low = upper ? k / n : 0.0;
  double high = upper ? 1.0 : k / n;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    // The upper bound is where so few hits become unlikely, the lower one where so many do.
    const bool unlikely = LogTail(k, n, middle, !upper) < std::log(kAlpha);
    (unlikely == upper ? high : low) = middle;
  }
  return upper ? high : low;
}

// Returns: a lower bound of the ε for which the outputs `on_d` and `on_other` of runs are (ε, kDelta)-private, with
// probability 1 − 4·kAlpha: half of the runs choose an event {output ≥ x} or {output ≤ x}, the other half test it.
double LeastEpsilon(const std::vector<int64_t>& on_d, const std::vector<int64_t>& on_other) {
  const size_t half = on_d.size() / 2;
  const auto n = static_cast<double>(half);
  // Ascending: the first and the second half of the runs.
  const auto sorted_half = [&](const std::vector<int64_t>& outputs, size_t first) {
    std::vector<int64_t> part(outputs.begin() + static_cast<std::ptrdiff_t>(first),
                              outputs.begin() + static_cast<std::ptrdiff_t>(first + half));
    std::sort(part.begin(), part.end());
    return part;
  };
  const auto count = [](const std::vector<int64_t>& part, int64_t x, bool above) {
    return static_cast<double>(above ? part.end() - std::lower_bound(part.begin(), part.end(), x)
                                     : std::upper_bound(part.begin(), part.end(), x) - part.begin());
  };
  const auto epsilon = [&](double hits, double others) {
    const double low = Bound(hits, n, false);
    const double high = Bound(others, n, true);
    return low <= kDelta ? 0.0 : std::log((low - kDelta) / high);
  };
  const std::vector<int64_t> d = sorted_half(on_d, 0);
  const std::vector<int64_t> other = sorted_half(on_other, 0);
  double best = 0.0;
  int64_t best_x = 0;
  bool best_above = true;
  bool best_swapped = false;
  for (int i = 1; i < 200; ++i) {
    const std::vector<int64_t>& from = i % 2 == 0 ? d : other;
    const int64_t x = from[half * static_cast<size_t>(i) / 200];
    for (const bool above : {true, false}) {
      for (const bool swapped : {true, false}) {
        const double hits = count(swapped ? other : d, x, above);
        const double others = count(swapped ? d : other, x, above);
        // About the bound below: no hits in n runs may still be a probability of 21/n.
        const double found = (hits / n - kDelta) / ((others + 6 * std::sqrt(others) + 21) / n);
        if (found > best) {
          best = found;
          best_x = x;
          best_above = above;
          best_swapped = swapped;
        }
      }
    }
  }
  const std::vector<int64_t> later_d = sorted_half(on_d, half);
  const std::vector<int64_t> later_other = sorted_half(on_other, half);
  return epsilon(count(best_swapped ? later_other : later_d, best_x, best_above),
                 count(best_swapped ? later_d : later_other, best_x, best_above));
}

// ε of a Gaussian mechanism of this noise multiplier at kDelta, after Balle and Wang (arXiv 1805.06530).
double ClaimedEpsilon(double multiplier) {
  const auto phi = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  double low = 0.0;
  double high = 100.0;
  for (int i = 0; i < 100; ++i) {
    const double epsilon = (low + high) / 2;
    const double delta = phi(0.5 / multiplier - epsilon * multiplier) -
                         std::exp(epsilon) * phi(-0.5 / multiplier - epsilon * multiplier);
    (delta > kDelta ? low : high) = epsilon;
  }
  return high;
}

// What a run publishes of one key: the sum of the terms of all submissions there, and noise.
struct Mechanism {
  double noise_multiplier = 1.0;
  double sigma_factor = 1.0;
  bool clips = true;
  bool reuses_seed = false;

  // Returns: outputs with the one submission, which is three times as long as the bound, or without.
  std::vector<int64_t> Run(bool with_submission) const {
    const std::vector<TensorSpec> specs = Resolved({PrivateTensor()}, PublicKeys(noise_multiplier));
    const Lattice lattice = LatticeOf(specs[0]);
    int64_t sum = 0;
    if (with_submission) {
      std::vector<ValidatedUpdate> updates = {UpdateOf(specs[0], {5}, {3.0})};
      EXPECT_TRUE(ApplyClips(specs, updates).ok());
      EXPECT_TRUE(MakeTerms(specs, lattice, updates).ok());
      sum = clips ? *reinterpret_cast<const int64_t*>(updates[0].values())
                  : static_cast<int64_t>(std::ldexp(3.0, lattice.shift));
    }
    const DiscreteGaussian gaussian(static_cast<uint64_t>(static_cast<double>(lattice.sigma) * sigma_factor));
    std::vector<int64_t> outputs;
    const uint64_t num_runs = NumRuns();
    for (uint64_t run = 0; run < num_runs; ++run) {
      // As in rounds of one name: release id and root of the submissions are part of the round key.
      if (run % 1000 == 0 && !(reuses_seed && run > 0)) {
        const NoiseSource source{std::string(32, 'k'), "tenant", "round", std::to_string(run / 1000)};
        Bytes32 root{};
        root[0] = !reuses_seed && with_submission ? 1 : 0;
        key_ = DeriveStreamKey(DeriveRoundKey(source, {}, root), NoisePurpose::kValues, "t");
      }
      NoiseStream stream(key_, reuses_seed ? 5 : run);
      outputs.push_back(sum + gaussian.Sample(stream));
    }
    return outputs;
  }

  double LeastEpsilonFound() const { return LeastEpsilon(Run(true), Run(false)); }

  mutable Bytes32 key_{};
};

TEST(PrivacyAudit, Mechanism_ShowsNoMoreThanTheClaim) {
  for (const double multiplier : {0.5, 0.7, 1.0, 1.4, 2.0}) {
    const double found = Mechanism{multiplier}.LeastEpsilonFound();
    const double claim = ClaimedEpsilon(multiplier);
    EXPECT_LE(found, claim) << "multiplier " << multiplier;
    EXPECT_GE(found, claim / 5) << "multiplier " << multiplier << ": the audit sees too little to tell anything";
    RecordProperty("epsilon_" + std::to_string(multiplier), std::to_string(found) + " of " + std::to_string(claim));
    std::cout << "noise multiplier " << multiplier << ": at least " << found << ", claimed " << claim << "\n";
  }
}

void ExpectCaught(const char* fault, const Mechanism& mechanism) {
  const double found = mechanism.LeastEpsilonFound();
  EXPECT_GT(found, ClaimedEpsilon(1.0));
  std::cout << fault << ": at least " << found << ", claimed " << ClaimedEpsilon(1.0) << "\n";
}

TEST(PrivacyAudit, HalfTheDeviation_IsCaught) { ExpectCaught("half the deviation", {1.0, 0.5}); }

TEST(PrivacyAudit, NoClipping_IsCaught) { ExpectCaught("no clipping", {1.0, 1.0, false}); }

TEST(PrivacyAudit, ReusedSeed_IsCaught) { ExpectCaught("reused seed", {1.0, 1.0, true, true}); }

// The selection of keys: whether a key that one submission alone lists is shown, beside a crowd at the threshold.
TEST(PrivacyAudit, KeySelection_ShowsNoMoreThanTheClaim_AndLoweredThresholdsAreCaught) {
  TensorPrivacy privacy;
  privacy.keys = KeySelection::kWeightedGaussian;
  privacy.key_noise_multiplier = 1.0;
  privacy.key_delta = kDelta;
  const KeyRule rule(privacy, 1, 1);
  const uint64_t num_runs = NumRuns();
  const auto scores = [&](int64_t score, uint8_t salt) {
    Bytes32 key{};
    key[0] = salt;
    std::vector<int64_t> outputs;
    for (uint64_t run = 0; run < num_runs; ++run) {
      NoiseStream stream(key, run);
      int64_t noisy = 0;
      outputs.push_back(rule.Keeps(score, 1, stream, noisy) ? 1 : 0);
    }
    return outputs;
  };
  const int64_t one = KeyWeight(KeySelection::kWeightedGaussian, 1);
  const int64_t crowd = rule.threshold() - one / 2;
  EXPECT_LE(LeastEpsilon(scores(crowd + one, 1), scores(crowd, 2)), ClaimedEpsilon(1.0));
  // A lone submission: shown with a probability of δ at most, so never where its key is unknown otherwise.
  const std::vector<int64_t> lone = scores(one, 3);
  const auto shown = static_cast<double>(std::count(lone.begin(), lone.end(), 1));
  EXPECT_LE(Bound(shown, static_cast<double>(num_runs), false), kDelta);
  const std::vector<int64_t> lowered = scores(one + 2 * one, 4);  // as with a threshold that is lower by two
  const auto more = static_cast<double>(std::count(lowered.begin(), lowered.end(), 1));
  EXPECT_GT(Bound(more, static_cast<double>(num_runs), false), kDelta);
}

}  // namespace
}  // namespace sparseagg::privacy
