// The checks of Accumulator::Prepare that run on a device.
#ifndef SPARSEAGG_CUDA_MERGE_CHECKER_H_
#define SPARSEAGG_CUDA_MERGE_CHECKER_H_

#include "absl/status/statusor.h"
#include "cuda/merge/tensor_shape.h"
#include "cuda/transfer/session.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// Returns: whether a validated update could still be refused: by a fixed-point term beyond the bound, or by an integer
// row that leaves int64 when its duplicates are added or when it is weighted.
bool NeedsRangeCheck(const TensorSpec& spec, const ValidatedUpdate& update);

// Returns: whether the update must be refused. The host then finds the reason, which is rare.
// Errors: of the device only. Blocks.
absl::StatusOr<bool> FailsRangeCheck(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                     const ValidatedUpdate& update);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_CHECKER_H_
