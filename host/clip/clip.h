// Bounds on one submission, applied before an engine sees it.
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

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_CLIP_CLIP_H_
