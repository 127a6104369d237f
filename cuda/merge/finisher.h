// Turns folded rows on a device into a result.
#ifndef SPARSEAGG_CUDA_MERGE_FINISHER_H_
#define SPARSEAGG_CUDA_MERGE_FINISHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device/device.h"
#include "cuda/merge/tensor_shape.h"
#include "cuda/transfer/session.h"
#include "host/result.h"
#include "host/spec/spec.h"

namespace sparseagg::cuda {

// The outcome of finishing: a result, or an error of the round (not of the device).
struct Finished {
  absl::Status failure;  // FAILED_PRECONDITION or OUT_OF_RANGE, as of Accumulator::Finish; OK: `result` is set
  Result result;
};

// Columns of a result on the device; those that are not wanted are empty.
struct ResultColumns {
  DeviceBuffer d_keys;
  DeviceBuffer d_values;
  DeviceBuffer d_counts;
  DeviceBuffer d_weights;
};

// The same as Finished, in device memory.
struct FinishedOnDevice {
  absl::Status failure;
  Layout layout = Layout::kSparse;
  uint64_t num_keys = 0;
  ResultColumns columns;
};

// Returns: a result of `num_rows` rows, uninitialised, in pinned memory as far as there is room.
absl::StatusOr<Result> MakeResult(Session& session, const TensorSpec& spec, Layout layout, uint64_t num_rows);

// Returns: how the rows of a tensor are divided and rounded, without rows. `rounded`: a fold can do it, because it
// finds no error of the round. `total_weight` is the divisor of MEAN.
FoldedRows RoundingOf(const TensorSpec& spec, const TensorShape& shape, double total_weight);

// Divides, rounds and drops rows on the device, chooses the layout, and copies the result to host memory. A dense
// result that does not fit into device memory is laid out on the host. `total_weight`: of RoundingOf. Errors:
// of the device only. Blocks: until the result is in host memory.
absl::StatusOr<Finished> FinishRows(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                    double total_weight, DeviceRows rows);

// The same with the result in device memory. Errors: also RESOURCE_EXHAUSTED for a dense result that does not fit.
// Blocks: until the result is there.
absl::StatusOr<FinishedOnDevice> FinishRowsOnDevice(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                                    double total_weight, DeviceRows rows);

// The same as FinishRows for rows that follow `num_rows` rows of the sparse result of `finished`, which is long enough.
// Sends them to their place, on Lane::kResult, and adds their number to `num_rows`. Sets the failure instead if there
// is one. Requires: the spec asks for a sparse result.
absl::Status AppendRows(Session& session, const TensorSpec& spec, const TensorShape& shape, double total_weight,
                        DeviceRows rows, Finished& finished, uint64_t& num_rows);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_FINISHER_H_
