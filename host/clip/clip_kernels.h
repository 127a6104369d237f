// The passes over values that bounds need. Each is compiled for several SIMD targets; all give the same bits.
#ifndef SPARSEAGG_HOST_CLIP_CLIP_KERNELS_H_
#define SPARSEAGG_HOST_CLIP_CLIP_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/spec/dtype.h"

namespace sparseagg::clip {

// A sum of squares in eight float64 lanes. Value number i, counted over all values that the sum covers, adds its square
// to lane i mod 8, each product and sum rounded once.
struct SquaredSum {
  double lanes[8] = {};
  uint64_t num_values = 0;

  double Total() const {
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
};

// Adds `count` finite values of the float type `dtype` to `sum`, each clamped to ±limit before.
// Returns: the largest magnitude, not clamped.
double AddSquares(DType dtype, const std::byte* values, uint64_t count, double limit, SquaredSum& sum);

// Clamps `count` values of the float type `dtype` to ±limit, in place. Requires: the type has the limit.
void Clamp(DType dtype, std::byte* values, uint64_t count, double limit);

}  // namespace sparseagg::clip

#endif  // SPARSEAGG_HOST_CLIP_CLIP_KERNELS_H_
