// The squares of one update's rows, for return_moments.
#ifndef SPARSEAGG_HOST_CLIP_SQUARED_ROWS_H_
#define SPARSEAGG_HOST_CLIP_SQUARED_ROWS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg {

// Returns: the tensor whose weighted sum is the moments of `spec`: of the same keys, of float64, with the op sum and a
// sparse result. Requires: `spec` has passed Validate, with return_moments.
TensorSpec MomentsSpec(const TensorSpec& spec);

// Returns: an update of MomentsSpec(spec): for each key of `update` the squares of its row. The row is the sum of the
// tuples of the key in order of occurrence, in float64, multiplied by the update's factor and rounded; integers are
// added exactly, and converted to float64. Each square is rounded once; it may be infinite. Keys may be those of
// `update`, and their memory.
// Errors: RESOURCE_EXHAUSTED: 2^32 or more unsorted tuples. UNIMPLEMENTED: the update is in device memory.
// Deterministic. Cost: one pass over the values of strictly ascending keys; a sort of others. Thread-safe.
absl::StatusOr<ValidatedUpdate> SquareRows(const TensorSpec& spec, const ValidatedUpdate& update);

// Returns: the most memory that SquareRows needs, its return value included. Saturates.
uint64_t SquareRowsBytes(const TensorSpec& spec, const ValidatedUpdate& update);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_CLIP_SQUARED_ROWS_H_
