// TileMerge: merges one batch by tiles of keys (kernels/tile_body.h).
#ifndef SPARSEAGG_CUDA_MERGE_TILE_MERGE_H_
#define SPARSEAGG_CUDA_MERGE_TILE_MERGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "cuda/merge/batch.h"
#include "cuda/merge/rows.h"
#include "cuda/merge/tensor_shape.h"
#include "cuda/transfer/session.h"

namespace sparseagg::cuda {

// Two steps, as Sorter: Start launches all work; Finish blocks until the number of rows is known. Requires: the batch
// and the base live until Finish returns. Deterministic: the same bits as the sort path.
class TileMerge {
 public:
  // Returns: whether the tile path can and should merge this batch: the keys of every source ascend strictly, rows have
  // one value or none, weights are not summed per key, and tiles have enough tuples (Tuning::min_tile_…).
  static bool ShouldMerge(Session& session, const TensorShape& shape, const DeviceRows& base, const Batch& batch);

  static absl::StatusOr<TileMerge> Start(Session& session, const TensorShape& shape, const DeviceRows& base,
                                         const Batch& batch);
  absl::StatusOr<DeviceRows> Finish(Session& session, const TensorShape& shape) &&;

 private:
  DeviceRows rows_;          // with room for as many rows as there can be
  DeviceBuffer d_counters_;  // among them the number of rows
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_TILE_MERGE_H_
