// From folded rows on a device to a result.
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

// What finishing came to: a result, or the reason why there is none, which is the round's fault and not the device's.
struct Finished {
  absl::Status failure;  // FAILED_PRECONDITION, OUT_OF_RANGE as of Accumulator::Finish
  Result result;
};

// Divides, rounds, drops rows, chooses the layout, and copies the result out, all but the choice on the device. A dense
// result that does not fit there is laid out on the host instead. `total_weight`: what a MEAN divides by. The status is
// about the device only. Blocks.
absl::StatusOr<Finished> FinishRows(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                    double total_weight, const DeviceRows& rows);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_FINISHER_H_
