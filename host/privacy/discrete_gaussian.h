// Samples of the discrete Gaussian distribution.
#ifndef SPARSEAGG_HOST_PRIVACY_DISCRETE_GAUSSIAN_H_
#define SPARSEAGG_HOST_PRIVACY_DISCRETE_GAUSSIAN_H_

#include <cstdint>

#include "host/privacy/noise.h"
#include "host/privacy/wide_product.h"

namespace sparseagg::privacy {

// N_ℤ(0, σ²): the integer x has a probability in proportion to exp(−x²/(2σ²)). Sampled as in Canonne, Kamath, Steinke,
// "The Discrete Gaussian for Differential Privacy" (arXiv 2004.00010), algorithms 1 to 3, in integers only: discrete
// Laplace samples of scale t = ⌊σ⌋ + 1 are accepted with probability exp(−(|y| − σ²/t)²/(2σ²)). Samples beyond 4096·t,
// whose probability is below e^-4000, do not occur. The time of a sample depends on the sample.
class DiscreteGaussian {
 public:
  static constexpr uint64_t kMaxTerm = (uint64_t{1} << 26) - 1;

  // σ = numerator / denominator. Requires: both are 1 to kMaxTerm.
  explicit DiscreteGaussian(uint64_t numerator, uint64_t denominator = 1);

  // Returns: a sample. Takes as many bits of the stream as it needs: about 150 bytes.
  int64_t Sample(NoiseStream& stream) const;

 private:
  uint64_t scale_;           // t
  Uint128 square_;           // σ² = square_ / divisor_
  Uint128 divisor_;          //
  Uint128 acceptance_unit_;  // 2·square_·divisor_·t²
};

// Returns: true with probability exp(−numerator / denominator). Requires: 1 ≤ denominator < 2^108.
bool BernoulliExp(Uint128 numerator, Uint128 denominator, NoiseStream& stream);

}  // namespace sparseagg::privacy

#endif  // SPARSEAGG_HOST_PRIVACY_DISCRETE_GAUSSIAN_H_
