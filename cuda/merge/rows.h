// Folded rows: the partial result over some submissions, in device or host memory.
#ifndef SPARSEAGG_CUDA_MERGE_ROWS_H_
#define SPARSEAGG_CUDA_MERGE_ROWS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "cuda/device/device_memory.h"
#include "cuda/merge/tensor_shape.h"
#include "cuda/transfer/session.h"
#include "host/base/column.h"
#include "host/unfinished_rows.h"

namespace sparseagg::cuda {

// The columns of folded rows, one array each. Columns that the tensor does not need are empty.
enum class RowColumn : uint8_t { kKeys, kAccs, kCounts, kWeights };
inline constexpr std::array<RowColumn, 4> kRowColumns = {RowColumn::kKeys, RowColumn::kAccs, RowColumn::kCounts,
                                                         RowColumn::kWeights};

// Bytes that one row takes in `column`.
inline size_t BytesPerRow(const TensorShape& shape, RowColumn column) {
  switch (column) {
    case RowColumn::kKeys:
      return shape.key_bytes;
    case RowColumn::kAccs:
      return size_t{shape.columns} * AccBytes(shape.fold);
    case RowColumn::kCounts:
      return shape.counts ? sizeof(uint32_t) : 0;
    case RowColumn::kWeights:
      return shape.key_weights == WeightKind::kCounts ? 0 : sizeof(double);
  }
  return 0;
}

template <typename Memory>
struct Rows {
  uint32_t num_rows = 0;
  bool ascends = true;  // keys ascend strictly; false for a concatenation of several row sets
  std::array<Memory, kRowColumns.size()> columns;

  Memory& operator[](RowColumn column) { return columns[static_cast<size_t>(column)]; }
  const Memory& operator[](RowColumn column) const { return columns[static_cast<size_t>(column)]; }
};

using DeviceRows = Rows<DeviceBuffer>;
using HostRows = Rows<Column<std::byte>>;

// Allocates rows for work on the compute lane. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<DeviceRows> AllocateRows(Session& session, const TensorShape& shape, uint32_t num_rows);

// Move rows of the engine to those that all engines share, and back. Requires: fewer than 2^32 rows.
UnfinishedRows ToUnfinished(HostRows&& rows);
HostRows FromUnfinished(UnfinishedRows&& rows);

inline size_t MemoryBytes(const HostRows& rows) {
  size_t bytes = 0;
  for (const Column<std::byte>& column : rows.columns) bytes += column.size();
  return bytes;
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_ROWS_H_
