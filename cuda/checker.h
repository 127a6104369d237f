// What Prepare asks of a device.
#ifndef SPARSEAGG_CUDA_CHECKER_H_
#define SPARSEAGG_CUDA_CHECKER_H_

#include "absl/status/statusor.h"
#include "cuda/session.h"
#include "cuda/tensor_shape.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// Whether anything in `update` could have it refused after validation: a fixed-point term beyond the bound, an integer
// that leaves int64 when its duplicates are added up or when it is weighted.
bool NeedsCheck(const TensorSpec& spec, const ValidatedUpdate& update);

// Whether the update must be refused. What for is found out on the host, where it is rare enough. The status is about
// the device only. Blocks.
absl::StatusOr<bool> MustRefuse(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                const ValidatedUpdate& update);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_CHECKER_H_
