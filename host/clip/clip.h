// What is done to one submission before an engine sees it: bounds, and the squares of its rows for return_moments.
#ifndef SPARSEAGG_HOST_CLIP_CLIP_H_
#define SPARSEAGG_HOST_CLIP_CLIP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/spec/clip.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg {

// Applies the bounds of all tensors (TensorSpec::clip) to one submission. For each tensor: folds repeated keys, keeps
// the max_keys rows of largest L2 norm, clamps values to ±linf. Then gives the tensors that an L2 norm covers the
// factor (ValidatedUpdate::factor) that brings the norm down to its bound. Tuples that max_keys or linf changes, and
// unsorted ones, are copied to memory of the update's own; others stay where they are. A submission within the bounds
// counts as if there were none. `updates[t]` belongs to specs[t]. Deterministic: norms are sums in float64 of squares
// in ascending order of keys (docs/robust.md), whatever the order of the tuples, the SIMD target and the engine.
// Errors: INVALID_ARGUMENT, or for max_keys RESOURCE_EXHAUSTED: beyond a bound under kReject; the text names norm, key
// or number, and bound. INVALID_ARGUMENT: the sum of squares is not finite. UNIMPLEMENTED: an update is on a device.
// RESOURCE_EXHAUSTED: 2^32 or more unsorted tuples in one update.
// Cost: one pass over the values of strictly ascending keys; a sort of others. Thread-safe.
absl::StatusOr<ClipOutcome> ApplyClips(absl::Span<const TensorSpec> specs, std::vector<ValidatedUpdate>& updates);

// Returns: the most memory that ApplyClips needs in addition to the updates, the new updates included. Saturates.
uint64_t ApplyClipsBytes(absl::Span<const TensorSpec> specs, absl::Span<const ValidatedUpdate> updates);

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

#endif  // SPARSEAGG_HOST_CLIP_CLIP_H_
