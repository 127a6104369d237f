#include "host/privacy/key_selection.h"

#include <algorithm>
#include <cmath>

#include "host/privacy/lattice.h"
#include "host/privacy/noise.h"

namespace sparseagg::privacy {
namespace {

// The counts' noise has a standard deviation of a multiple of 2^-10.
constexpr int kCountSigmaBits = 10;

uint64_t FloorRoot(uint64_t square) {
  auto root = static_cast<uint64_t>(std::sqrt(static_cast<double>(square)));
  while (Uint128{root} * root > square) --root;
  while (Uint128{root + 1} * (root + 1) <= square) ++root;
  return root;
}

// Returns: an upper bound of max over 1 ≤ j ≤ max_keys of 1/√j + σ·Φ⁻¹((1−δ)^(1/j)). Exact up to 1024 keys; above that
// the largest value of each term in ranges of j that grow by a 64th.
double LargestScore(double sigma, double delta, uint64_t max_keys) {
  double largest = 0.0;
  for (uint64_t first = 1; first <= max_keys;) {
    const uint64_t last = first < 1024 ? first : std::min(max_keys, first + first / 64);
    largest = std::max(largest, 1.0 / std::sqrt(static_cast<double>(first)) +
                                    sigma * NormalQuantile(delta, static_cast<double>(last)));
    if (last == max_keys) break;
    first = last + 1;
  }
  return largest;
}

}  // namespace

double NormalQuantile(double delta, double j) {
  const double tail = -std::expm1(std::log1p(-delta) / j) * (1.0 - 0x1p-40);
  double low = -1.0;  // delta ≤ 0.5 and j ≥ 1: the quantile is at least 0
  double high = 39.0;
  while (high - low > 0x1p-30) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > tail ? low : high) = middle;
  }
  return high;
}

int64_t KeyWeight(KeySelection selection, uint64_t num_keys) {
  if (selection != KeySelection::kWeightedGaussian) return 1;
  // ⌊√x⌋ of a fraction is ⌊√⌊x⌋⌋.
  return static_cast<int64_t>(FloorRoot((uint64_t{1} << (2 * kKeyWeightBits)) / num_keys));
}

KeyRule::KeyRule(const TensorPrivacy& privacy, uint64_t max_keys, uint32_t min_contributors)
    : min_contributors_(std::max(min_contributors, uint32_t{1})) {
  const auto most = static_cast<double>(max_keys);
  double unit = 1.0;
  double least = 0.0;
  if (privacy.keys == KeySelection::kWeightedGaussian) {
    unit = std::ldexp(1.0, kKeyWeightBits);
    sigma_numerator_ = static_cast<uint64_t>(std::ceil(std::ldexp(privacy.key_noise_multiplier, kKeyWeightBits)));
    least = unit * LargestScore(static_cast<double>(sigma_numerator_) / unit, privacy.key_delta, max_keys);
  } else {
    sigma_denominator_ = uint64_t{1} << kCountSigmaBits;
    const Uint128 square = WideProduct()
                               .Multiply(privacy.key_noise_multiplier)
                               .Multiply(privacy.key_noise_multiplier)
                               .Multiply(most)
                               .Ceil(2 * kCountSigmaBits);
    sigma_numerator_ = FloorRoot(static_cast<uint64_t>(square) - 1) + 1;  // ⌈√square⌉
    const double sigma = static_cast<double>(sigma_numerator_) / static_cast<double>(sigma_denominator_);
    least = 1.0 + sigma * NormalQuantile(privacy.key_delta, most);
  }
  threshold_ = static_cast<int64_t>(std::ceil(least)) + 1;
  threshold_ += static_cast<int64_t>(unit) * (int64_t{min_contributors_} - 1);
}

bool KeyRule::Keeps(int64_t score, uint64_t num_contributors, NoiseStream& stream, int64_t& noisy_score) const {
  noisy_score = score + DiscreteGaussian(sigma_numerator_, sigma_denominator_).Sample(stream);
  return num_contributors >= min_contributors_ && noisy_score >= threshold_;
}

}  // namespace sparseagg::privacy
