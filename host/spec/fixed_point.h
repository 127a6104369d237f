// Scales of fixed-point sums. Terms are int64 multiples of 2^-shift; the shift is chosen so that no sum can overflow.
#ifndef SPARSEAGG_HOST_SPEC_FIXED_POINT_H_
#define SPARSEAGG_HOST_SPEC_FIXED_POINT_H_

#include <cmath>
#include <cstdint>

#include "host/spec/spec.h"

namespace sparseagg {

// ⌈log₂ x⌉ for finite x > 0.
inline int CeilLog2(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);  // x = fraction · 2^exponent, fraction in [0.5, 1)
  return fraction == 0.5 ? exponent - 1 : exponent;
}

// 62 − ⌈log₂ M⌉ − ⌈log₂ bound⌉: M terms of magnitude ≤ bound stay below 2^62 in units of 2^-shift.
inline int FixedPointShift(uint64_t max_submissions, double bound) {
  return 62 - CeilLog2(static_cast<double>(max_submissions)) - CeilLog2(bound);
}

inline int ValueShift(const AggregationSpec& a) { return FixedPointShift(a.max_submissions, a.value_bound); }
inline int WeightShift(const AggregationSpec& a) { return FixedPointShift(a.max_submissions, a.weight_bound); }

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_SPEC_FIXED_POINT_H_
