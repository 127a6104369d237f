// The one rounding of a float result.
#ifndef SPARSEAGG_HOST_CPU_FINISH_ROUNDING_H_
#define SPARSEAGG_HOST_CPU_FINISH_ROUNDING_H_

#include <cstddef>

#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// Rounds to float dtype `dtype`, to nearest even. NaN becomes the one canonical NaN (quiet, positive), and −0.0
// becomes +0.0, also where it came from the rounding.
void RoundTo(DType dtype, const double* values, size_t count, std::byte* out);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_FINISH_ROUNDING_H_
