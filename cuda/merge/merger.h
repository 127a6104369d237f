// Merger: folds earlier rows and updates, in canonical order, into rows on the device.
#ifndef SPARSEAGG_CUDA_MERGE_MERGER_H_
#define SPARSEAGG_CUDA_MERGE_MERGER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cuda/merge/batch.h"
#include "cuda/merge/sorter.h"
#include "cuda/merge/tensor_shape.h"
#include "cuda/transfer/session.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// Merges batch by batch, as device memory allows. A batch is merged on one of two paths: the sort path sorts (key,
// position) pairs, finds segments of equal keys and folds each from left to right; the tile path (kernels/tile_body.h)
// serves dense keys that ascend. The rows of a batch come first in the next batch, so a fold continues where it stopped
// and the cuts leave no trace in the result. The next batch is copied in while one is merged.
//
// Used for one operation, on the stack. Not thread-safe. Errors: of the device only (device.h).
// Deterministic: the bits do not depend on batches or paths.
class Merger {
 public:
  // `shrink`: batches are 4^shrink times smaller, for another attempt after memory ran out.
  Merger(Session& session, const TensorShape& shape, int shrink) : session_(session), shape_(shape), shrink_(shrink) {}

  // Merges `bases` (rows of earlier merges, keys strictly ascending; several only where the order of submissions does
  // not matter) and then `updates`. `rounding`: how values will be divided and rounded (RoundingOf, finisher.h); if
  // that can be done at once, the last batch writes values in place of accumulators. Returns: rows with strictly
  // ascending keys.
  absl::StatusOr<DeviceRows> Merge(absl::Span<const UnfinishedRows> bases,
                                   const std::vector<const ValidatedUpdate*>& updates, const FoldedRows& rounding = {});

  // The number of tuples that fit in device memory together, or of rows.
  uint64_t Room() const { return RoomBeside(0) >> (2 * shrink_); }

  // Merges one batch into the rows of the batches before it. Calls `meanwhile` while the device works. Consumes the
  // batch. `rounding`: of Merge, if it is the last batch. Returns: when the number of rows is known; the rows
  // themselves may still be under way on the compute lane.
  absl::StatusOr<DeviceRows> MergeBatch(const DeviceRows& base, Batch& batch,
                                        const std::function<absl::Status()>& meanwhile,
                                        const FoldedRows& rounding = {});

 private:
  absl::StatusOr<DeviceRows> SendBases(absl::Span<const UnfinishedRows> bases);
  // The most rows that merging so many tuples into so many rows can give.
  uint64_t MaxRows(uint64_t num_rows, uint64_t num_tuples) const;
  // The number of tuples that fit in device memory together with `num_rows` rows.
  uint64_t RoomBeside(uint64_t num_rows) const;
  // The size of the next batch, in tuples, when `num_left` have not been sent. 0: there is room for too few to
  // continue.
  uint64_t BatchSize(uint64_t num_rows, uint64_t num_left) const;
  // Sends the next batch. Requires: the number of `rows` is known. Errors: NoRoom when they leave too little memory.
  absl::StatusOr<Batch> SendNext(const DeviceRows& rows, BatchCursor& cursor);
  absl::StatusOr<SortedKeys> StartSort(const DeviceRows& base, Batch& batch);
  absl::StatusOr<DeviceRows> FoldSegments(const DeviceRows& base, const Batch& batch, const SortedKeys& sorted,
                                          const FoldedRows& rounding);

  Session& session_;
  const TensorShape& shape_;
  const int shrink_;
  uint64_t max_tuples_ = ~uint64_t{0};  // of a batch
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_MERGER_H_
