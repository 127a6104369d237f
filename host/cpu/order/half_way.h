// The value at a rank, or half way between two, as a result.
#ifndef SPARSEAGG_HOST_CPU_ORDER_HALF_WAY_H_
#define SPARSEAGG_HOST_CPU_ORDER_HALF_WAY_H_

#include <cmath>
#include <cstdint>

#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// Conversion to Out (see LaneEvaluator) for a result of dtype `dtype`.
template <typename Out>
struct HalfWay;

template <>
struct HalfWay<double> {
  static double Single(double value, DType) { return value; }
  // Returns: (a + b) / 2, rounded once: the sum of two halves, unless halving a denormal would round.
  static double Between(double a, double b, DType) {
    const double sum = a + b;
    return std::isfinite(sum) ? 0.5 * sum : 0.5 * a + 0.5 * b;
  }
  // To float32 directly from the integer: via float64 it would be rounded twice.
  static double Single(int64_t value, DType dtype) {
    return dtype == DType::kFloat32 ? static_cast<double>(static_cast<float>(value)) : static_cast<double>(value);
  }
  static double Between(int64_t a, int64_t b, DType dtype) {
    const __int128 sum = static_cast<__int128>(a) + b;
    return 0.5 * (dtype == DType::kFloat32 ? static_cast<double>(static_cast<float>(sum)) : static_cast<double>(sum));
  }
};

template <>
struct HalfWay<int64_t> {
  static int64_t Single(int64_t value, DType) { return value; }
  // Rounded to nearest even.
  static int64_t Between(int64_t a, int64_t b, DType) {
    const __int128 sum = static_cast<__int128>(a) + b;
    const __int128 below = sum >> 1;
    return static_cast<int64_t>(below + ((sum & 1) != 0 && (below & 1) != 0 ? 1 : 0));
  }
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_HALF_WAY_H_
