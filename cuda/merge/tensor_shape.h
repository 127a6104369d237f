// TensorShape: a tensor's spec in the terms of the kernels.
#ifndef SPARSEAGG_CUDA_MERGE_TENSOR_SHAPE_H_
#define SPARSEAGG_CUDA_MERGE_TENSOR_SHAPE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "cuda/device/device.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/segments.h"
#include "cuda/transfer/session.h"
#include "host/base/column.h"
#include "host/spec/spec.h"
#include "host/unfinished_rows.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// Whether the device merges such a tensor: it leaves order statistics to the CPU engine.
inline bool IsForDevice(const TensorSpec& spec) { return !IsOrderStatistic(spec.aggregation.op); }

// The properties of a tensor that merging and finishing need. Made once per accumulator; immutable, so thread-safe.
struct TensorShape {
  explicit TensorShape(const TensorSpec& spec);

  // Returns: how an update's values turn into terms, and what it adds to the weights of its keys.
  Source MakeSource(const ValidatedUpdate& update) const;
  uint64_t num_rows = 0;  // as in the spec
  uint32_t key_bytes = 4;
  int key_bits = 32;     // low bits in which keys can differ: the bits to sort
  uint32_t columns = 1;  // accumulators per key; 0 for UNION
  size_t row_bytes = 4;  // of a row of values as sent
  DType type = DType::kFloat32;
  FoldKind fold = FoldKind::kSumFloat;
  bool weighted = false;  // terms are multiplied by weights
  bool uniform = true;    // they are not, and values are not multiplied by factors either: the tensor has no bounds
  bool counts = false;    // the number of contributors per key is needed
  WeightKind key_weights = WeightKind::kCounts;

  // Bytes of one folded row, all columns.
  size_t RowBytes() const;
};

// The columns of folded rows, one array each. Columns that the tensor does not need are empty.
enum class RowColumn : uint8_t { kKeys, kAccs, kCounts, kWeights, kTops };
inline constexpr std::array<RowColumn, 5> kRowColumns = {RowColumn::kKeys, RowColumn::kAccs, RowColumn::kCounts,
                                                         RowColumn::kWeights, RowColumn::kTops};

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
      switch (shape.key_weights) {
        case WeightKind::kFloat:
          return sizeof(double);
        case WeightKind::kBinned:
          return sizeof(BinnedWeights);
        default:
          return 0;
      }
    case RowColumn::kTops:
      return IsBinned(shape.fold) ? shape.columns : 0;
  }
  return 0;
}

// The keys from `first` to `last`, both included; none at the start.
struct KeyRange {
  uint64_t first = UINT64_MAX;
  uint64_t last = 0;

  // Widens the range to include the range or key.
  void Include(const KeyRange& other) {
    first = std::min(first, other.first);
    last = std::max(last, other.last);
  }
  void Include(uint64_t key) { Include({key, key}); }
};

// Rows in device memory. Those in host memory are UnfinishedRows, of fewer than 2^32 rows.
struct DeviceRows {
  uint32_t num_rows = 0;
  bool rounded = false;  // FoldedRows::rounded
  KeyRange range;        // of their keys
  bool ascends = true;   // keys ascend strictly; false for a concatenation of several row sets
  std::array<DeviceBuffer, kRowColumns.size()> columns;

  DeviceBuffer& operator[](RowColumn column) { return columns[static_cast<size_t>(column)]; }
  const DeviceBuffer& operator[](RowColumn column) const { return columns[static_cast<size_t>(column)]; }
};

// Returns: a column of rows in host memory.
template <typename Rows>
auto& ColumnOf(Rows& rows, RowColumn column) {
  switch (column) {
    case RowColumn::kAccs:
      return rows.accs;
    case RowColumn::kCounts:
      return rows.counts;
    case RowColumn::kWeights:
      return rows.weights;
    case RowColumn::kTops:
      return rows.tops;
    default:
      return rows.keys;
  }
}

// Returns: the range of the keys of rows [first, first + count) in host memory, which ascend.
inline KeyRange KeysOf(const TensorShape& shape, const UnfinishedRows& rows, uint64_t first, uint64_t count) {
  if (count == 0) return {};
  return {LoadKey(rows.keys.data(), shape.key_bytes, first),
          LoadKey(rows.keys.data(), shape.key_bytes, first + count - 1)};
}

inline Accs AccsOf(const DeviceRows& rows) {
  return {rows[RowColumn::kAccs].get(), rows[RowColumn::kTops].as<uint8_t>()};
}

// Allocates rows for work on the compute lane; with `rounding`.rounded for values of its type in place of accumulators.
// Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<DeviceRows> AllocateRows(Session& session, const TensorShape& shape, uint32_t num_rows,
                                        const FoldedRows& rounding = {});

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_TENSOR_SHAPE_H_
