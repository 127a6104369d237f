// Rounding of float results.
#ifndef SPARSEAGG_HOST_CPU_FINISH_ROUNDING_H_
#define SPARSEAGG_HOST_CPU_FINISH_ROUNDING_H_

#include <cstddef>

#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// Rounds `count` values to the float type `dtype`, to nearest even, and writes them to `out`. NaN becomes the canonical
// NaN (quiet, positive). −0.0 becomes +0.0, also where the rounding made it.
void RoundTo(DType dtype, const double* values, size_t count, std::byte* out);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_FINISH_ROUNDING_H_
