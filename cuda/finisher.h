// Turns folded rows on a device into a result.
#ifndef SPARSEAGG_CUDA_FINISHER_H_
#define SPARSEAGG_CUDA_FINISHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/rows.h"
#include "cuda/session.h"
#include "cuda/tensor_shape.h"
#include "host/result.h"
#include "host/spec/spec.h"

namespace sparseagg::cuda {

// The outcome of finishing: a result, or an error of the round (not of the device).
struct Finished {
  absl::Status failure;  // FAILED_PRECONDITION or OUT_OF_RANGE, as of Accumulator::Finish; OK: `result` is set
  Result result;
};

// Divides, rounds and drops rows on the device, chooses the layout, and copies the result to host memory. A dense
// result that does not fit into device memory is laid out on the host. `total_weight` is the divisor of MEAN. Errors:
// of the device only. Blocks: until the result is in host memory.
absl::StatusOr<Finished> FinishRows(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                    double total_weight, const DeviceRows& rows);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_FINISHER_H_
