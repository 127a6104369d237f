// The merge of one batch by tiles (kernels/tiles.h).
#ifndef SPARSEAGG_CUDA_TILE_MERGE_H_
#define SPARSEAGG_CUDA_TILE_MERGE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "cuda/batch.h"
#include "cuda/rows.h"
#include "cuda/session.h"
#include "cuda/tensor_shape.h"

namespace sparseagg::cuda {

// In two steps, as Sorter: Start asks for everything, Finish blocks until the number of rows is known. The batch and
// the base must stay until then. The same bits as the sort path.
class TileMerge {
 public:
  // Whether it can be done, and should: keys of every source ascend strictly, the dimension is small enough for arrays
  // by key, weights are not summed by key, and sources have enough tuples in a tile to keep its threads busy.
  static bool Suits(Session& session, const TensorShape& shape, const DeviceRows& base, const Batch& batch);

  static absl::StatusOr<TileMerge> Start(Session& session, const TensorShape& shape, const DeviceRows& base,
                                         const Batch& batch);
  absl::StatusOr<DeviceRows> Finish(Session& session, const TensorShape& shape) &&;

 private:
  DeviceBuffer d_accs_;  // by key
  DeviceBuffer d_counts_;
  Session::PendingSelection touched_;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TILE_MERGE_H_
