// Which keys a private result has.
#ifndef SPARSEAGG_HOST_PRIVACY_KEY_SELECTION_H_
#define SPARSEAGG_HOST_PRIVACY_KEY_SELECTION_H_

#include <cstdint>

#include "host/privacy/noise.h"
#include "host/spec/privacy.h"

namespace sparseagg::privacy {

// The unit of the weights of kWeightedGaussian.
inline constexpr int kKeyWeightBits = 20;

// Returns: what a submission of `num_keys` distinct keys adds to the score of each of them: ⌊2^20/√num_keys⌋ under
// kWeightedGaussian, so that the scores of a submission have an L2 norm ≤ 2^20; else 1. Requires: num_keys ≥ 1.
int64_t KeyWeight(KeySelection selection, uint64_t num_keys);

// The rule by which one tensor's keys are kept. A key's score is the sum of the key weights of its contributors.
//
// It is kept if its score and noise are at least a threshold. kWeightedGaussian is that of Gopi and
// others, "Differentially Private Set Union" (arXiv 2002.09745): with σ the key noise multiplier and δ of the tensor,
//   τ = max over 1 ≤ j ≤ max_keys of 1/√j + σ·Φ⁻¹((1−δ)^(1/j)).
// A submission that alone lists j of its m keys scores at most 1/√j at each, so that with probability 1 − δ none of
// them is kept. One unit is added to the threshold, since P[N_ℤ ≥ x] ≤ P[N ≥ x − 1] (arXiv 2004.00010). kCountGaussian:
// the scores of a submission have an L2 norm ≤ √max_keys, and noise of σ·√max_keys. `min_contributors` = t > 1: keys of
// fewer contributors are never kept, and t − 1 times the largest key weight is added to the threshold: a submission
// that brings a key to t contributors is then as hidden as one that brings it to 1.
class KeyRule {
 public:
  // Requires: the options have passed ResolvePrivacy; `selection` is not kPublic.
  KeyRule(const TensorPrivacy& privacy, uint64_t max_keys, uint32_t min_contributors);

  // Returns: whether a key is kept. `stream`: of NoisePurpose::kKeys. `noisy_score`: set to score and noise.
  // Requires: num_contributors ≥ 1; a contributor adds at least 1 to the score.
  bool Keeps(int64_t score, uint64_t num_contributors, NoiseStream& stream, int64_t& noisy_score) const;

  // The threshold and the noise, in units of the score.
  int64_t threshold() const { return threshold_; }
  uint64_t sigma_numerator() const { return sigma_numerator_; }
  uint64_t sigma_denominator() const { return sigma_denominator_; }

 private:
  uint32_t min_contributors_;
  int64_t threshold_ = 0;
  uint64_t sigma_numerator_ = 1;
  uint64_t sigma_denominator_ = 1;
};

// Returns: an upper bound of Φ⁻¹((1−delta)^(1/j)), too large by less than 1e-8.
double NormalQuantile(double delta, double j);

}  // namespace sparseagg::privacy

#endif  // SPARSEAGG_HOST_PRIVACY_KEY_SELECTION_H_
