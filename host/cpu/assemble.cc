#include "host/cpu/assemble.h"

#include <algorithm>
#include <cstring>

#include "host/cpu/folded_rows.h"
#include "host/cpu/round.h"
#include "host/fixed_point.h"

namespace sparseagg::cpu {
namespace {

size_t RowBytes(const Result& result) { return result.has_values ? SizeOf(result.dtype) * result.width : 0; }

Result MakeEmpty(const TensorSpec& spec) {
  Result result;
  result.has_values = spec.aggregation.op != Op::kUnion;
  result.dtype = ResultDType(spec);
  result.width = spec.width;
  result.dimension = spec.dimension;
  if (UsesFixedPoint(spec)) result.fixed_point_shift = ValueShift(spec.aggregation);
  if (HasNarrowKeys(spec)) {
    result.keys.emplace<Column<uint32_t>>();
  } else {
    result.keys.emplace<Column<uint64_t>>();
  }
  return result;
}

void Resize(const TensorSpec& spec, uint64_t num_rows, Result& result) {
  result.num_rows = num_rows;
  std::visit([&](auto& keys) { keys.resize(num_rows); }, result.keys);
  result.values.resize(num_rows * RowBytes(result));
  if (ReturnsCounts(spec)) result.counts.resize(num_rows);
  if (spec.aggregation.return_weights) result.weights.resize(num_rows);
}

// `fill` in the result dtype.
void WriteFill(const TensorSpec& spec, std::byte* out) {
  const DType dtype = ResultDType(spec);
  const double fill = spec.aggregation.fill;
  if (IsFloat(dtype)) {
    RoundTo(dtype, &fill, 1, out);
  } else if (IsModular(dtype)) {
    const auto value = static_cast<uint64_t>(fill);
    std::memcpy(out, &value, SizeOf(dtype));
  } else {
    const auto value = static_cast<int64_t>(fill);
    std::memcpy(out, &value, sizeof(value));
  }
}

}  // namespace

Result MakeSparse(const TensorSpec& spec, uint64_t num_rows) {
  Result result = MakeEmpty(spec);
  Resize(spec, num_rows, result);
  return result;
}

void CutSparse(const TensorSpec& spec, uint64_t num_rows, Result& result) {
  Resize(spec, num_rows, result);
  std::visit([](auto& keys) { keys.Trim(); }, result.keys);
  result.values.Trim();
  result.counts.Trim();
  result.weights.Trim();
}

Result MakeDense(const TensorSpec& spec, const Result& sparse) {
  Result result = MakeEmpty(spec);
  result.layout = Layout::kDense;
  result.num_rows = spec.dimension;
  const size_t row_bytes = RowBytes(result);
  result.values.resize(spec.dimension * row_bytes);
  if (result.has_values) {
    std::byte fill[8];
    WriteFill(spec, fill);
    const size_t value_bytes = SizeOf(result.dtype);
    if (std::all_of(fill, fill + value_bytes, [](std::byte b) { return b == std::byte{0}; })) {
      std::fill(result.values.begin(), result.values.end(), std::byte{0});
    } else {
      for (size_t at = 0; at < result.values.size(); at += value_bytes) {
        std::memcpy(result.values.data() + at, fill, value_bytes);
      }
    }
  }
  if (ReturnsCounts(spec)) {
    result.counts.resize(spec.dimension);
    std::fill(result.counts.begin(), result.counts.end(), 0u);
  }
  if (spec.aggregation.return_weights) {
    result.weights.resize(spec.dimension);
    std::fill(result.weights.begin(), result.weights.end(), 0.0);
  }
  for (uint64_t row = 0; row < sparse.num_rows; ++row) {
    const uint64_t key = sparse.KeyAt(row);
    if (row_bytes > 0) {
      std::memcpy(result.values.data() + key * row_bytes, sparse.values.data() + row * row_bytes, row_bytes);
    }
    if (!result.counts.empty()) result.counts[key] = sparse.counts[row];
    if (!result.weights.empty()) result.weights[key] = sparse.weights[row];
  }
  return result;
}

}  // namespace sparseagg::cpu
