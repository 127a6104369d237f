// Binned sums: sums of floats whose bits depend neither on the order of the terms nor on how sums were merged.
#ifndef SPARSEAGG_HOST_BASE_BINNED_H_
#define SPARSEAGG_HOST_BASE_BINNED_H_

#include <cmath>
#include <cstdint>

#include "host/base/host_device.h"

namespace sparseagg {

// A sum of float64 terms in K bins of W bits, kept in integers. (Demmel and Nguyen, "Parallel Reproducible Summation",
// 2015, have the same bins in floating point.)
//
// Bin j counts units of 2^(j·W − 1074). BinOf(x) is the lowest bin with |x| < 2^(W−1) of its units. There the digit of
// x is rint(x / unit), ties to even; the remainder has a digit in the bin below, and so on. Digits depend on x alone,
// and integers add exactly. The sum keeps the highest bin of any term and the K − 1 bins below it. A bin that is kept
// at the end was kept from the start, since bins only leave at the bottom; so the state is the same in every order.
// Error of a term: at most 2^(−W·(K−1)) of the largest term.
//
//   BinnedSum<2, 44> sum;
//   for (const double term : terms) sum.Add(term);   // or Merge sums of parts of the terms
//   const double total = sum.Value();
//
// On a GPU too. Compile without -ffast-math and, there, without fused multiply-add. Not thread-safe.
template <int K, int W>
struct BinnedSum {
  static constexpr int kBins = K;
  static constexpr int kBits = W;
  // Digits are at most 2^(W−1), so that the sums of so many stay within int64.
  static constexpr uint64_t kMaxTerms = (uint64_t{1} << (64 - W)) - 1;
  // Above the bin in `top`: terms that were infinite. Both: the sum is NaN, as after a NaN.
  static constexpr uint8_t kBinMask = 63;
  static constexpr int kMaxBin = (2046 + 52) / W;        // of finite terms
  static constexpr int kMaxRoundedBin = (2046 - 1) / W;  // above, 1.5·2^52 units are beyond float64
  static constexpr uint8_t kPlusInfinity = 64;
  static constexpr uint8_t kMinusInfinity = 128;

  SPARSEAGG_HD static int BiasedExponentOf(double x) { return static_cast<int>(BitsAs<uint64_t>(x) >> 52 & 0x7ff); }
  SPARSEAGG_HD static int BinOf(double x) {
    const int bin = (BiasedExponentOf(x) + 52) / W;
    return bin < K - 1 ? K - 1 : bin;
  }

  SPARSEAGG_HD void Add(double x) {
    if (BiasedExponentOf(x) == 2047) {
      top |= x != x ? kPlusInfinity | kMinusInfinity : x > 0 ? kPlusInfinity : kMinusInfinity;
      return;
    }
    RaiseTo(BinOf(x));
    if (bin() <= kMaxRoundedBin) {
      // x + 1.5·2^52 units is rounded to a multiple of the unit, ties to even, and its bits count the units.
      uint64_t exponent = static_cast<uint64_t>(bin()) * W + 1;
      for (int64_t& digit : digits) {
        const auto round = BitsAs<double>(exponent << 52 | uint64_t{1} << 51);
        const double rounded = x + round;
        digit += BitsAs<int64_t>(rounded) - BitsAs<int64_t>(round);
        x -= rounded - round;  // exact
        exponent -= W;
      }
      return;
    }
    double units = ldexp(x, 1074 - bin() * W);
    for (int64_t& digit : digits) {
      const double rounded = rint(units);
      digit += static_cast<int64_t>(rounded);
      units = (units - rounded) * static_cast<double>(int64_t{1} << W);  // exact
    }
  }

  SPARSEAGG_HD void Merge(BinnedSum other) {
    RaiseTo(other.bin());
    other.RaiseTo(bin());
    for (int k = 0; k < K; ++k) digits[k] += other.digits[k];
    top |= other.top & ~kBinMask;
  }

  // Returns: the sum of the digits, rounded once, to nearest even. Zero is +0.0; NaN is quiet and positive.
  SPARSEAGG_HD double Value() const {
    if (const int infinities = top & ~kBinMask; infinities != 0) {
      if (infinities == kPlusInfinity) return INFINITY;
      return infinities == kMinusInfinity ? -INFINITY : NAN;
    }
    // In units of the lowest bin. The scaling is exact, or overflows: what is subnormal has few bits.
    const int scale = (bin() - (K - 1)) * W - 1074;
    __int128 sum = 0;
    for (int k = 0; k + 1 < K; ++k) sum = (sum << W) + digits[k];
    sum += digits[K - 1] >> W;
    const int64_t low = digits[K - 1] & ((int64_t{1} << W) - 1);
    if (sum >> (126 - W) == 0 || sum >> (126 - W) == -1) {
      return ldexp(static_cast<double>((sum << W) + low), scale);
    }
    // More than 53 + 2 bits are left: below them it only counts whether there are any.
    return ldexp(static_cast<double>(2 * sum + (low != 0 ? 1 : 0)), scale + W - 1);
  }

  friend bool operator==(const BinnedSum& a, const BinnedSum& b) {
    for (int k = 0; k < K; ++k) {
      if (a.digits[k] != b.digits[k]) return false;
    }
    return a.top == b.top;
  }

  SPARSEAGG_HD int bin() const { return top & kBinMask; }
  // Requires: bin < 64. Does nothing if the top is as high.
  SPARSEAGG_HD void RaiseTo(int bin) {
    const int by = bin - this->bin();
    if (by <= 0) return;
    top = static_cast<uint8_t>(top + by);
    // Bin by bin, so that on a GPU the digits stay in registers.
    for (int left = by < K ? by : K; left > 0; --left) {
      for (int k = K - 1; k > 0; --k) digits[k] = digits[k - 1];
      digits[0] = 0;
    }
  }

  int64_t digits[K] = {};  // of the bins from the top down
  uint8_t top = K - 1;     // kBinMask: the highest bin of any term; no bin is below 0
};

// Of terms of float32 and narrower values: 44 bits below the largest term at least.
using NarrowBinnedSum = BinnedSum<2, 44>;
// Of terms of float64 values, and of weights: 80 bits.
using WideBinnedSum = BinnedSum<3, 40>;

// A WideBinnedSum of weights, as unfinished rows and partials have it.
struct BinnedWeights {
  int64_t digits[WideBinnedSum::kBins];
  int64_t top;

  SPARSEAGG_HD static BinnedWeights Of(const WideBinnedSum& sum) {
    BinnedWeights weights = {};
    for (int k = 0; k < WideBinnedSum::kBins; ++k) weights.digits[k] = sum.digits[k];
    weights.top = sum.top;
    return weights;
  }
  SPARSEAGG_HD WideBinnedSum Sum() const {
    WideBinnedSum sum;
    for (int k = 0; k < WideBinnedSum::kBins; ++k) sum.digits[k] = digits[k];
    sum.top = static_cast<uint8_t>(top);
    return sum;
  }
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_BINNED_H_
