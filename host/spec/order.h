// Options of the order statistics: median, trimmed mean and quantile of the values at a key.
#ifndef SPARSEAGG_HOST_SPEC_ORDER_H_
#define SPARSEAGG_HOST_SPEC_ORDER_H_

#include <cstdint>
#include <optional>

namespace sparseagg {

// Whether a submission that does not list a key votes in the key's order statistic.
enum class AbsentPolicy : uint8_t {
  kSkip,  // no
  kZero,  // it votes for 0, with its weight
};

struct OrderOptions {
  std::optional<double> trim_fraction;  // of the values, at either end; Op::kTrimmedMean needs it; in [0, 0.5)
  std::optional<double> quantile;       // Op::kQuantile needs it; in [0, 1]
  AbsentPolicy absent = AbsentPolicy::kSkip;
};

// Returns: b, the number of values that a trimmed mean of `n` ≥ 1 values drops at either end; 2b < n. ⌊fraction · n⌋ is
// taken of the float64 product, as SciPy's trim_mean does, so that 0.3 of 10 is 3. Rounding does not make a product
// n/2: float64 is finer below a number than a fraction under ½ is far from ½.
uint64_t TrimOf(const OrderOptions& options, uint64_t n);

// Returns: the index, in ascending order, of the unweighted q-quantile of n ≥ 1 values: NumPy's "inverted_cdf".
uint64_t QuantileIndex(double q, uint64_t n);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_SPEC_ORDER_H_
