// The merge: earlier rows and updates, in canonical order, become folded rows.
#ifndef SPARSEAGG_CUDA_MERGER_H_
#define SPARSEAGG_CUDA_MERGER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/batch.h"
#include "cuda/rows.h"
#include "cuda/session.h"
#include "cuda/sorter.h"
#include "cuda/tensor_shape.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// Merges batch by batch, as memory allows. Either sorts (key, position), finds segments and folds each from left to
// right, or, where keys lie densely and ascend, works by tiles of keys (tile_merge.h). The rows of one batch come first
// in the next, so that a fold goes on where it stopped and cuts cannot be seen in the result. While one batch is
// merged, the next one is copied in.
//
// Statuses are about the device only (device.h).
class Merger {
 public:
  // `shrink`: batches are a quarter of the size that many times over, for another attempt when memory ran out.
  Merger(Session& session, const TensorShape& shape, int shrink) : session_(session), shape_(shape), shrink_(shrink) {}

  // `bases`: rows of earlier merges, in which keys ascend strictly. More than one only where the order of submissions
  // does not matter. Rows of the result ascend strictly.
  absl::StatusOr<DeviceRows> Merge(const std::vector<const HostRows*>& bases,
                                   const std::vector<const ValidatedUpdate*>& updates);

  // One batch, behind the rows of those before. Calls `meanwhile` while the device works; returns when the number of
  // rows is known, which is before they are there. Uses up the batch.
  absl::StatusOr<DeviceRows> MergeBatch(const DeviceRows& base, Batch& batch,
                                        const std::function<absl::Status()>& meanwhile);

 private:
  absl::StatusOr<DeviceRows> SendBases(const std::vector<const HostRows*>& bases);
  // The most rows that merging so many tuples into so many rows can give.
  uint64_t MaxRows(uint64_t num_rows, uint64_t num_tuples) const;
  // Tuples that fit beside `num_rows`.
  uint64_t RoomBeside(uint64_t num_rows) const;
  // Tuples that the next batch is to have, of the `num_left` that have not been sent; 0 where there is room for so few
  // that it is better not to go on.
  uint64_t BatchSize(uint64_t num_rows, uint64_t num_left) const;
  // When the number of rows is known. NoRoom where that leaves too little.
  absl::StatusOr<Batch> SendNext(const DeviceRows& rows, BatchCursor& cursor);
  absl::StatusOr<Sorter> StartSort(const DeviceRows& base, Batch& batch);
  absl::StatusOr<DeviceRows> FoldSegments(const DeviceRows& base, const Batch& batch, const SortedKeys& sorted);

  Session& session_;
  const TensorShape& shape_;
  const int shrink_;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGER_H_
