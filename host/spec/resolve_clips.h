// From the bounds of a round and of its tensors to the bounds that apply to each tensor.
#ifndef SPARSEAGG_HOST_SPEC_RESOLVE_CLIPS_H_
#define SPARSEAGG_HOST_SPEC_RESOLVE_CLIPS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "host/spec/clip.h"
#include "host/spec/spec.h"

namespace sparseagg {

// Sets TensorSpec::clip of all tensors of a round. A bound of `tensors[t]` overrides that bound of `round` for
// specs[t]. The round's l2 bounds all float tensors without an l2 of their own together; its max_keys bounds each
// sparse one. Tensors without float values (integers, UNION) have no bounds. Requires: the specs are valid but for
// `clip`; one ClipSpec for each. Errors: INVALID_ARGUMENT names tensor, field and value: a bound out of range, without
// effect, or of a tensor that propagates NaN and ±Inf.
absl::Status ResolveClips(const ClipSpec& round, absl::Span<const ClipSpec> tensors, absl::Span<TensorSpec> specs);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_SPEC_RESOLVE_CLIPS_H_
