#include "host/privacy/lattice.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sparseagg::privacy {

WideProduct& WideProduct::Multiply(double factor) {
  int exponent = 0;
  const double fraction = std::frexp(factor, &exponent);  // factor = fraction · 2^exponent, fraction in [0.5, 1)
  const auto integer = static_cast<uint64_t>(std::ldexp(fraction, 53));
  exponent_ += exponent - 53;
  uint64_t carry = 0;
  for (uint64_t& limb : limbs_) {
    const Uint128 product = Uint128{limb} * integer + carry;
    limb = static_cast<uint64_t>(product);
    carry = static_cast<uint64_t>(product >> 64);
  }
  return *this;
}

int WideProduct::BitLength() const {
  for (int i = 3; i >= 0; --i) {
    if (limbs_[i] != 0) return 64 * i + static_cast<int>(std::bit_width(limbs_[i]));
  }
  return 0;
}

bool WideProduct::Bit(int index) const {
  return index >= 0 && index < 256 && ((limbs_[index / 64] >> (index % 64)) & 1) != 0;
}

bool WideProduct::HasBitsBelow(int index) const {
  for (int i = 0; i < index && i < 256; ++i) {
    if (Bit(i)) return true;
  }
  return false;
}

Uint128 WideProduct::Floor(int shift) const {
  const int lowest = -(exponent_ + shift);  // the bit of the integer that becomes bit 0
  Uint128 result = 0;
  for (int i = 0; i < 128; ++i) {
    if (Bit(lowest + i)) result |= Uint128{1} << i;
  }
  return result;
}

Uint128 WideProduct::Ceil(int shift) const { return Floor(shift) + (HasBitsBelow(-(exponent_ + shift)) ? 1 : 0); }

int WideProduct::FloorLog2() const { return BitLength() - 1 + exponent_; }

int WideProduct::CeilLog2() const { return FloorLog2() + (HasBitsBelow(BitLength() - 1) ? 1 : 0); }

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
