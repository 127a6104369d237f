// The moments of a finished result: return_moments.
#ifndef SPARSEAGG_HOST_MOMENTS_H_
#define SPARSEAGG_HOST_MOMENTS_H_

#include "host/result.h"

namespace sparseagg {

// Sets result.moments: for each row of `result` the row of `moments` of the same key, and zeros where it has none, or
// where `result` has a count of 0: at keys of a dense result that were dropped.
// `moments`: the sparse result of MomentsSpec, of float64. Throws std::bad_alloc.
void AddMoments(const Result& moments, Result& result);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_MOMENTS_H_
