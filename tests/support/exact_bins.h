// Binned sums of the reference, in integers alone: the digits of a term in all bins, each bin's total, and the total of
// the highest bins rounded bit by bit. Shares no code with host/base/binned.h.
#ifndef SPARSEAGG_TESTS_SUPPORT_EXACT_BINS_H_
#define SPARSEAGG_TESTS_SUPPORT_EXACT_BINS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace sparseagg::testing {

class ExactBins {
 public:
  // `kept`: bins that are kept. `width`: bits of a bin.
  ExactBins(int kept, int width) : kept_(kept), width_(width), top_(kept - 1) {}

  void Add(double term) {
    if (!std::isfinite(term)) {
      special_ += term;
      return;
    }
    if (term == 0.0) return;
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(term), &exponent);
    auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, 53));
    int place = exponent - 53 + 1074;  // |term| = mantissa · 2^(place − 1074); below 0: the lowest bits are 0
    for (; place < 0; ++place) mantissa >>= 1;
    // The biased exponent that float64 has; 0 of subnormal numbers.
    const int biased = std::max(0, exponent + 1022);
    const int top = std::max(kept_ - 1, (biased + 52) / width_);
    top_ = std::max(top_, top);
    Int rest = mantissa;
    for (int bin = top; bin >= 0 && rest != 0; --bin) {
      const int shift = bin * width_ - place;
      Int digit = 0;
      if (shift <= 0) {
        digit = rest << -shift;
      } else if (shift < 120) {
        // To nearest even, of a rest of either sign.
        const Int unit = Int{1} << shift;
        digit = rest >= 0 ? rest / unit : -((-rest + unit - 1) / unit);
        const Int twice = 2 * (rest - digit * unit);
        if (twice > unit || (twice == unit && digit % 2 != 0)) ++digit;
      }
      rest -= shift <= 0 ? rest : shift < 120 ? digit << shift : 0;
      totals_[bin] += static_cast<int64_t>(std::signbit(term) ? -digit : digit);
    }
  }

  double Value() const {
    if (special_ != 0.0) return std::isnan(special_) ? std::numeric_limits<double>::quiet_NaN() : special_;
    // Bits from the lowest kept bin up, first signed, then of the magnitude.
    std::vector<int64_t> bits(256, 0);
    const int lowest = top_ - (kept_ - 1);
    for (const auto& [bin, total] : totals_) {
      if (bin < lowest) continue;
      const uint64_t magnitude = total < 0 ? -static_cast<uint64_t>(total) : static_cast<uint64_t>(total);
      for (int i = 0; i < 64; ++i) {
        if (magnitude >> i & 1) bits[static_cast<size_t>((bin - lowest) * width_ + i)] += total < 0 ? -1 : 1;
      }
    }
    const bool is_negative = Normalise(bits) < 0;
    if (is_negative) {
      for (int64_t& bit : bits) bit = -bit;
      Normalise(bits);
    }
    size_t high = bits.size();
    while (high > 0 && bits[high - 1] == 0) --high;
    const size_t low = high > 53 ? high - 53 : 0;
    uint64_t mantissa = 0;
    for (size_t i = high; i > low; --i) mantissa = 2 * mantissa + static_cast<uint64_t>(bits[i - 1]);
    if (low > 0 && bits[low - 1] == 1) {
      const bool is_tie = std::all_of(bits.begin(), bits.begin() + static_cast<std::ptrdiff_t>(low) - 1,
                                      [](int64_t bit) { return bit == 0; });
      if (!is_tie || mantissa % 2 == 1) ++mantissa;
    }
    const double value = std::ldexp(static_cast<double>(mantissa), static_cast<int>(low) + lowest * width_ - 1074);
    return is_negative ? -value : value;
  }

 private:
  using Int = __int128;

  // Carries, so that all bits are 0 or 1. Returns: what is carried out: below 0 of a negative number.
  static int64_t Normalise(std::vector<int64_t>& bits) {
    int64_t carry = 0;
    for (int64_t& bit : bits) {
      const int64_t sum = bit + carry;
      bit = sum & 1;
      carry = (sum - bit) / 2;
    }
    return carry;
  }

  const int kept_;
  const int width_;
  int top_;
  std::map<int, int64_t> totals_;
  double special_ = 0.0;  // the sum of NaN and infinities
};

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_EXACT_BINS_H_
