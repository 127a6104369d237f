// What the values of one update are multiplied by on their way into a sum.
#ifndef SPARSEAGG_HOST_CPU_SIMD_VALUE_SCALE_H_
#define SPARSEAGG_HOST_CPU_SIMD_VALUE_SCALE_H_

namespace sparseagg::cpu {

// A value v becomes (v · factor) · weight; each product is rounded to float64. A factor of 1 changes no bit.
struct ValueScale {
  double factor = 1.0;  // ValidatedUpdate::factor
  double weight = 1.0;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_VALUE_SCALE_H_
