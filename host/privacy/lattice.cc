#include "host/privacy/lattice.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sparseagg::privacy {

Lattice MakeLattice(double noise_multiplier, double weight_bound, double l2, uint64_t max_submissions) {
  const WideProduct norm = WideProduct().Multiply(weight_bound).Multiply(l2);
  WideProduct deviation = norm;
  deviation.Multiply(noise_multiplier);
  WideProduct square = norm;
  square.Multiply(weight_bound).Multiply(l2);
  const int log_submissions = static_cast<int>(std::bit_width(max_submissions - 1));  // ⌈log₂ M⌉
  Lattice lattice;
  lattice.shift = std::min(62 - log_submissions - norm.CeilLog2(), 24 - deviation.FloorLog2());
  lattice.sigma = static_cast<uint64_t>(deviation.Ceil(lattice.shift));
  lattice.norm_bound = square.Floor(2 * lattice.shift);
  const double units = std::ldexp(weight_bound, lattice.shift / 2) * std::ldexp(l2, lattice.shift - lattice.shift / 2);
  lattice.effective_multiplier = std::nextafter(static_cast<double>(lattice.sigma) / units, 0.0);
  return lattice;
}

}  // namespace sparseagg::privacy
