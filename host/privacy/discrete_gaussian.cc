#include "host/privacy/discrete_gaussian.h"

namespace sparseagg::privacy {
namespace {

// The samples of the geometric part of the Laplace distribution end here.
constexpr uint64_t kMostScales = 4096;

// Returns: true with probability exp(−numerator / denominator). Requires: numerator ≤ denominator.
bool BernoulliExpUpToOne(Uint128 numerator, Uint128 denominator, NoiseStream& stream) {
  uint64_t k = 1;
  while (stream.Below(denominator * k) < numerator) ++k;
  return k % 2 == 1;
}

}  // namespace

bool BernoulliExp(Uint128 numerator, Uint128 denominator, NoiseStream& stream) {
  for (; numerator > denominator; numerator -= denominator) {
    if (!BernoulliExpUpToOne(1, 1, stream)) return false;
  }
  return BernoulliExpUpToOne(numerator, denominator, stream);
}

DiscreteGaussian::DiscreteGaussian(uint64_t numerator, uint64_t denominator)
    : scale_(numerator / denominator + 1),
      square_(Uint128{numerator} * numerator),
      divisor_(Uint128{denominator} * denominator),
      acceptance_unit_(2 * square_ * divisor_ * scale_ * scale_) {}

int64_t DiscreteGaussian::Sample(NoiseStream& stream) const {
  while (true) {
    // |y| = u + t·v of a discrete Laplace distribution of scale t, with a sign.
    const auto u = static_cast<uint64_t>(stream.Below(scale_));
    if (!BernoulliExp(u, scale_, stream)) continue;
    uint64_t v = 0;
    while (v < kMostScales && BernoulliExp(1, 1, stream)) ++v;
    const uint64_t magnitude = u + scale_ * v;
    const bool negative = (stream.Next8() & 1) != 0;
    if (negative && magnitude == 0) continue;
    // (|y| − σ²/t)²/(2σ²) = (|y|·t·d − s)²/(2·s·d·t²), with σ² = s/d.
    const Uint128 scaled = Uint128{magnitude} * scale_ * divisor_;
    const Uint128 distance = scaled > square_ ? scaled - square_ : square_ - scaled;
    if (distance >> 63 != 0) continue;  // its probability is below e^-100000, and its square may not fit
    if (!BernoulliExp(distance * distance, acceptance_unit_, stream)) continue;
    const auto sample = static_cast<int64_t>(magnitude);
    return negative ? -sample : sample;
  }
}

}  // namespace sparseagg::privacy
