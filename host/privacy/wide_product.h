// Exact products of float64 numbers.
#ifndef SPARSEAGG_HOST_PRIVACY_WIDE_PRODUCT_H_
#define SPARSEAGG_HOST_PRIVACY_WIDE_PRODUCT_H_

#include <cstdint>

namespace sparseagg::privacy {

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

}  // namespace sparseagg::privacy

#endif  // SPARSEAGG_HOST_PRIVACY_WIDE_PRODUCT_H_
