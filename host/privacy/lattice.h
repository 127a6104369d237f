// The lattice of a private sum, and the noise on it.
#ifndef SPARSEAGG_HOST_PRIVACY_LATTICE_H_
#define SPARSEAGG_HOST_PRIVACY_LATTICE_H_

#include <cstdint>

#include "host/privacy/wide_product.h"

namespace sparseagg::privacy {

// A sum of up to M submissions of L2 norm ≤ W·C in multiples of 2^-shift, with discrete Gaussian noise. The multiples
// of a submission have squares of a sum ≤ norm_bound, so that the sensitivity is √norm_bound ≤ W·C·2^shift, exactly.
struct Lattice {
  int shift = 0;  // s = min(62 − ⌈log₂ M⌉ − ⌈log₂ W·C⌉, 24 − ⌊log₂ z·W·C⌋): no sum leaves int64
  uint64_t sigma = 0;                 // ⌈z·W·C·2^s⌉ < 2^26: standard deviation of the noise, in units of 2^-s
  Uint128 norm_bound = 0;             // ⌊(W·C·2^s)²⌋ < 2^125
  double effective_multiplier = 0.0;  // sigma / (W·C·2^s), rounded down; at least z but for that rounding
};

// `noise_multiplier`: z, in [2^-10, 2^10]; `weight_bound`: W; `l2`: C, with W·C in [2^-500, 2^500]; `max_submissions`:
// M, 1 to 2^32. ResolvePrivacy checks these ranges. Computed without rounding, but for effective_multiplier.
Lattice MakeLattice(double noise_multiplier, double weight_bound, double l2, uint64_t max_submissions);

}  // namespace sparseagg::privacy

#endif  // SPARSEAGG_HOST_PRIVACY_LATTICE_H_
