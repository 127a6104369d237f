// Merges and finishes a round slab by slab (slab_plan.h), so that copies in, merges and copies out overlap.
#ifndef SPARSEAGG_CUDA_MERGE_SLAB_MERGE_H_
#define SPARSEAGG_CUDA_MERGE_SLAB_MERGE_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/merge/finisher.h"
#include "cuda/merge/rows.h"
#include "cuda/merge/tensor_shape.h"
#include "cuda/transfer/session.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// While one slab is merged, the next one is on its way to the device and the results of the one before are on theirs to
// the host. No slab needs memory for another's rows, so a round of any size fits.
//
// `shrink`: as of Merger. `total_weight`: as of FinishRows. Returns: nothing if the round is not cut, because keys do
// not strictly ascend, the result is not sparse, one slab would do, or a single key has too many tuples. Errors: of the
// device only. Blocks: until the result is in host memory. Deterministic: the bits of Merger and FinishRows.
absl::StatusOr<std::optional<Finished>> MergeInSlabs(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                                     int shrink, double total_weight,
                                                     const std::vector<const HostRows*>& bases,
                                                     const std::vector<const ValidatedUpdate*>& updates);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_SLAB_MERGE_H_
