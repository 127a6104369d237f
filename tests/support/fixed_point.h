// The reference's fixed-point arithmetic.
#ifndef SPARSEAGG_TESTS_SUPPORT_FIXED_POINT_H_
#define SPARSEAGG_TESTS_SUPPORT_FIXED_POINT_H_

#include <cmath>

#include "host/spec/spec.h"
#include "tests/support/values.h"

namespace sparseagg::testing {

// Exact sums of multiples of 2^-shift.
struct FixedPoint {
  int shift;

  Int128 FromDouble(double x) const { return static_cast<Int128>(std::nearbyint(std::ldexp(x, shift))); }
  // One rounding: int64 to float64. The scaling is exact.
  double ToDouble(Int128 sum) const { return std::ldexp(static_cast<double>(static_cast<int64_t>(sum)), -shift); }
};

inline FixedPoint ValueScale(const AggregationSpec& a) {
  return {62 - CeilLog2(a.max_submissions) - CeilLog2(a.value_bound)};
}
inline FixedPoint WeightScale(const AggregationSpec& a) {
  return {62 - CeilLog2(a.max_submissions) - CeilLog2(a.weight_bound)};
}

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_FIXED_POINT_H_
