#include "cuda/fallback_bytes.h"

#include <algorithm>

#include "host/base/saturating.h"

namespace sparseagg::cuda {
namespace {

// Returns: the most bytes of a merge on the host, before the merged rows are copied out.
uint64_t MergeBytes(const TensorShape& shape, const FallbackInput& input) {
  if (input.num_tuples == 0) return SaturatingMultiply(input.num_rows, shape.RowBytes());
  // Bytes of an entry during the sort: key and position, twice; and the array that HostDevice sorts, with a buffer of
  // half its size.
  const uint64_t entry = shape.key_bytes == 4 ? 8 : 16;
  const uint64_t sort_bytes = 2 * (shape.key_bytes + sizeof(uint32_t)) + entry + entry / 2 + 1;
  // Bytes of an entry after the sort: key, position, flag, begin of its segment, scratch of the selection; and its row.
  const uint64_t sorted_bytes =
      shape.key_bytes + sizeof(uint32_t) + sizeof(uint8_t) + sizeof(uint32_t) + 1 + shape.RowBytes();
  const uint64_t entries = SaturatingAdd(input.num_rows, input.num_tuples);
  const uint64_t copies =
      SaturatingAdd(SaturatingMultiply(input.num_rows, shape.RowBytes()),
                    SaturatingMultiply(input.num_tuples, shape.key_bytes + uint64_t{shape.row_bytes}));
  return SaturatingAdd(copies, SaturatingMultiply(entries, std::max(sort_bytes, sorted_bytes)));
}

}  // namespace

uint64_t GrowthBytes(const TensorShape& shape, uint64_t num_tuples, bool unique, uint64_t sent_bytes) {
  if (unique) return 0;
  const uint64_t folded = SaturatingMultiply(num_tuples, shape.key_bytes + uint64_t{shape.columns} * sizeof(double));
  return folded - std::min(folded, sent_bytes);
}

uint64_t HostMergeBytes(const TensorShape& shape, const FallbackInput& input) {
  return std::max(MergeBytes(shape, input), SaturatingMultiply(input.max_rows, 2 * shape.RowBytes()));
}

uint64_t HostFinishBytes(const TensorShape& shape, const FallbackInput& input, uint64_t result_bytes) {
  // Bytes of a row: the row, its two flags, the index of a kept row, and scratch of the selection.
  const uint64_t row_bytes = shape.RowBytes() + 2 * sizeof(uint8_t) + sizeof(uint32_t) + 1;
  return std::max(MergeBytes(shape, input),
                  SaturatingAdd(SaturatingMultiply(input.max_rows, row_bytes), SaturatingMultiply(result_bytes, 2)));
}

}  // namespace sparseagg::cuda
