// Cuts updates into batches that fit a device, and sends them there.
#ifndef SPARSEAGG_CUDA_MERGE_BATCH_H_
#define SPARSEAGG_CUDA_MERGE_BATCH_H_

#include <cstdint>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device/device.h"
#include "cuda/kernels/segments.h"
#include "cuda/merge/tensor_shape.h"
#include "cuda/transfer/session.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// Returns: the array that holds the keys; null for a run. `keys`: KeyColumn or InputKeys.
template <typename Keys>
const void* KeyArray(const Keys& keys) {
  const auto array = [](const auto& span) -> const void* {
    if constexpr (std::is_same_v<std::decay_t<decltype(span)>, KeyRun>) {
      return nullptr;
    } else {
      return span.data();
    }
  };
  return std::visit(array, keys);
}

// Returns: bytes [first, first + bytes) of the keys or of the values of an update.
HostPart KeyPart(const ValidatedUpdate& update, size_t first, size_t bytes);
HostPart ValuePart(const ValidatedUpdate& update, size_t first, size_t bytes);

// Returns: a key of an update in host memory.
uint64_t KeyAt(const ValidatedUpdate& update, uint64_t index);

// Tuples [first, first + count) of one update.
struct UpdateRange {
  const ValidatedUpdate* update = nullptr;
  uint64_t first = 0;
  uint64_t count = 0;
};

// Rows [first, first + count) of rows in host memory.
struct RowRange {
  const UnfinishedRows* rows = nullptr;
  uint64_t first = 0;
  uint64_t count = 0;
};

// Iterates over updates in order, batch by batch. An update with unique keys may be cut between batches: its parts, as
// sources of the same weight, give the same bits as the whole. An update with repeated keys is never cut, because its
// duplicates are folded before they are added. Not thread-safe.
class BatchCursor {
 public:
  explicit BatchCursor(const std::vector<const ValidatedUpdate*>& updates);

  bool done() const { return next_ == updates_.size(); }
  uint64_t num_left() const { return num_left_; }  // tuples not handed out yet
  // Returns: the next ranges, of at most `max_tuples` (≥ 1) tuples, or one update that is larger and cannot be cut.
  std::vector<UpdateRange> Next(uint64_t max_tuples);

 private:
  void SkipEmpty();

  const std::vector<const ValidatedUpdate*>& updates_;
  size_t next_ = 0;
  uint64_t next_tuple_ = 0;  // of that update
  uint64_t num_left_ = 0;
};

// The sources of one batch in device memory, or on their way there.
struct Batch {
  uint32_t num_tuples = 0;
  uint32_t num_sources = 0;
  bool unique = true;  // no source has a key twice: keys strictly ascend in each
  KeyRange range;      // of its keys; if they do not ascend, or the host cannot read them, of all keys of the tensor
  DeviceBuffer d_keys;
  DeviceBuffer d_values;
  DeviceBuffer d_begin;
  DeviceBuffer d_sources;
  // Runs of consecutive keys, which are written on the device instead of copied.
  std::vector<ExpandRun> runs;
  EventId sent = 0;  // after its copies

  uint64_t num_bytes() const { return d_keys.bytes() + d_values.bytes() + d_begin.bytes() + d_sources.bytes(); }
};

// Sends ranges on the copy lane. Returns: when the host has filled the staging buffers; the copies may still be under
// way.
absl::StatusOr<Batch> SendBatch(Session& session, const TensorShape& shape, const std::vector<UpdateRange>& ranges);

// Sends rows on the copy lane, one range after another. The same of what it returns. Requires: fewer than 2^32 rows.
absl::StatusOr<DeviceRows> SendRows(Session& session, const TensorShape& shape, const std::vector<RowRange>& ranges);

// Makes the compute lane wait for the batch and what was sent before it, and writes the keys of the batch's runs.
absl::Status ReceiveBatch(Session& session, Batch& batch);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_BATCH_H_
