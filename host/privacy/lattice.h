// The lattice of a private sum, and the noise on it.
#ifndef SPARSEAGG_HOST_PRIVACY_LATTICE_H_
#define SPARSEAGG_HOST_PRIVACY_LATTICE_H_

#include <cstdint>

namespace sparseagg::privacy {

// Exact products of float64 numbers.
using Uint128 = unsigned __int128;
using Int128 = __int128;

// A product of up to four positive float64 numbers, without rounding: a 256-bit integer times a power of two.
class WideProduct {
 public:
  // Requires: `factor` is finite and above 0; at most four factors.
  WideProduct& Multiply(double factor);

  // Return: ⌊product · 2^shift⌋ and ⌈product · 2^shift⌉. Require: the value is below 2^127.
  Uint128 Floor(int shift) const;
  Uint128 Ceil(int shift) const;
  // Return: ⌊log₂ product⌋ and ⌈log₂ product⌉.
  int FloorLog2() const;
  int CeilLog2() const;

 private:
  int BitLength() const;
  bool Bit(int index) const;
  bool HasBitsBelow(int index) const;

  uint64_t limbs_[4] = {1, 0, 0, 0};  // the integer, least significant limb first
  int exponent_ = 0;
};

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
