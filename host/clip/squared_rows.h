// The squares of one update's rows, for return_moments.
#ifndef SPARSEAGG_HOST_CLIP_SQUARED_ROWS_H_
#define SPARSEAGG_HOST_CLIP_SQUARED_ROWS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg {

// Returns: the spec of the tensor whose weighted sum is the moments of `spec`: the same keys, float64, the op sum, a
// sparse result. Requires: `spec` has passed Validate, with return_moments.
TensorSpec MomentsSpec(const TensorSpec& spec);

// Returns: an update of MomentsSpec(spec): for each key of `update` the squares of its row. The row is the sum of the
// tuples of the key in order of occurrence, in float64, multiplied by the update's factor and rounded; integers are
// added exactly, and converted to float64. Each square is rounded once; it may be infinite. The keys may be borrowed
// from `update`, whose owner they keep alive.
// Requires: no sum of integers overflows int64, which Accumulator::Prepare has checked.
// Errors: RESOURCE_EXHAUSTED: 2^32 or more tuples, and update.unique() is false. UNIMPLEMENTED: the update is in device
// memory.
// Deterministic. Cost: one pass over the values; also a sort if the keys descend somewhere. Thread-safe.
absl::StatusOr<ValidatedUpdate> SquareRows(const TensorSpec& spec, const ValidatedUpdate& update);

// Returns: the most memory that SquareRows needs, its return value included. Saturates.
uint64_t SquareRowsBytes(const TensorSpec& spec, const ValidatedUpdate& update);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_CLIP_SQUARED_ROWS_H_
