#include "host/result.h"

#include <algorithm>

#include "host/base/saturating.h"
#include "host/spec/spec.h"

namespace sparseagg {

size_t Result::memory_bytes() const {
  const size_t key_bytes = std::visit([](const auto& column) { return column.size() * sizeof(column[0]); }, keys);
  return key_bytes + values.size() + counts.size() * sizeof(uint32_t) +
         (weights.size() + moments.size()) * sizeof(double);
}

DeviceResult FormOf(const Result& result) {
  DeviceResult form;
  form.layout = result.layout;
  form.dtype = result.dtype;
  form.has_values = result.has_values;
  form.row_width = result.row_width;
  form.num_rows = result.num_rows;
  form.num_keys = result.num_keys;
  form.key_bytes = std::holds_alternative<Column<uint32_t>>(result.keys) ? sizeof(uint32_t) : sizeof(uint64_t);
  form.fixed_point_shift = result.fixed_point_shift;
  return form;
}

Result EmptyResult(const TensorSpec& spec) {
  Result result;
  result.has_values = spec.aggregation.op != Op::kUnion;
  result.dtype = ResultDType(spec);
  result.row_width = spec.row_width;
  result.num_rows = spec.num_rows;
  if (UsesFixedPoint(spec)) result.fixed_point_shift = ValueShift(spec.aggregation);
  if (HasNarrowKeys(spec)) {
    result.keys.emplace<Column<uint32_t>>();
  } else {
    result.keys.emplace<Column<uint64_t>>();
  }
  return result;
}

bool IsDenseResult(const TensorSpec& spec, uint64_t num_keys) {
  const AggregationSpec& a = spec.aggregation;
  if (a.result_layout != ResultLayout::kAuto) return a.result_layout == ResultLayout::kDense;
  if (spec.num_rows == 0) return false;
  const uint64_t row_bytes = a.op == Op::kUnion ? sizeof(uint32_t) : SizeOf(ResultDType(spec)) * spec.row_width;
  using Wide = unsigned __int128;
  if (Wide{num_keys} * (KeyBytes(spec) + row_bytes) >= Wide{spec.num_rows} * row_bytes) return true;
  return a.dense_threshold.has_value() &&
         static_cast<double>(num_keys) / static_cast<double>(spec.num_rows) >= *a.dense_threshold;
}

namespace {

// Bytes of one row without its key.
uint64_t RowBytes(const TensorSpec& spec) {
  uint64_t bytes = spec.aggregation.op == Op::kUnion ? 0 : uint64_t{spec.row_width} * SizeOf(ResultDType(spec));
  if (ReturnsCounts(spec)) bytes += sizeof(uint32_t);
  if (spec.aggregation.return_weights) bytes += sizeof(double);
  if (spec.aggregation.return_moments) bytes += uint64_t{spec.row_width} * sizeof(double);
  return bytes;
}

}  // namespace

uint64_t DenseResultBytes(const TensorSpec& spec) { return SaturatingMultiply(spec.num_rows, RowBytes(spec)); }

uint64_t ResultBytes(const TensorSpec& spec, uint64_t max_keys) {
  const uint64_t rows = spec.num_rows == 0 ? max_keys : std::min(max_keys, spec.num_rows);
  const uint64_t cut = HasCut(spec) ? 2 * sizeof(double) : 0;  // the norms, and a copy to select from
  const uint64_t sparse = SaturatingMultiply(rows, SaturatingAdd(KeyBytes(spec) + cut, RowBytes(spec)));
  return IsDenseResult(spec, rows) ? SaturatingAdd(sparse, DenseResultBytes(spec)) : sparse;
}

}  // namespace sparseagg
