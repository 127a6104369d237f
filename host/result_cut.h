// The cut of a finished result to its rows of largest norm: result_top_k and result_min_norm.
#ifndef SPARSEAGG_HOST_RESULT_CUT_H_
#define SPARSEAGG_HOST_RESULT_CUT_H_

#include "host/result.h"
#include "host/spec/spec.h"

namespace sparseagg {

// Removes the rows that the spec's result_top_k and result_min_norm do not keep: keys, values, counts and weights.
// Adds their number to result.num_cut_keys. The rows that stay keep their order.
//
// The norm of a row is √Σx² over its values, as the result holds them: after the division and the rounding to the
// result's dtype, integers converted to float64. Σx² is a sum in eight float64 lanes by the index of the column
// (clip::SquaredSum). A sum that is NaN, or beyond float64, counts as infinite.
// result_min_norm keeps the rows with √Σx² ≥ result_min_norm, the root correctly rounded. result_top_k keeps the rows
// of the largest Σx²; of equal ones those of the lower keys. Requires: `result` is sparse; the spec has passed
// Validate. Deterministic: depends only on the rows and the spec. Cost: two passes over the values, and a selection in
// expected linear time. Memory: ResultBytes counts it. Throws std::bad_alloc, and then the result is unchanged.
void CutResult(const TensorSpec& spec, Result& result);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_RESULT_CUT_H_
