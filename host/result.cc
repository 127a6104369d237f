#include "host/result.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <variant>

#include "host/base/column.h"
#include "host/base/saturating.h"
#include "host/clip/clip_kernels.h"
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
  return form;
}

Result EmptyResult(const TensorSpec& spec) {
  Result result;
  result.has_values = spec.aggregation.op != Op::kUnion;
  result.dtype = ResultDType(spec);
  result.row_width = spec.row_width;
  result.num_rows = spec.num_rows;
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

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Widens the integers of one row to float64.
template <typename T>
void WidenRow(const std::byte* row, size_t width, double* out) {
  for (size_t c = 0; c < width; ++c) {
    T value;
    std::memcpy(&value, row + c * sizeof(T), sizeof(T));
    out[c] = static_cast<double>(value);
  }
}

// Returns: Σx² of each row; infinity in place of NaN.
Column<double> SquaredNorms(const Result& result) {
  const size_t width = result.row_width;
  const size_t row_bytes = result.row_bytes();
  const bool is_float = IsFloat(result.dtype);
  Column<double> widened(is_float ? 0 : width);
  Column<double> norms(result.num_keys);
  for (uint64_t row = 0; row < result.num_keys; ++row) {
    const std::byte* values = result.values.data() + row * row_bytes;
    if (!is_float) {
      WidenRow<int64_t>(values, width, widened.data());  // integer results are int64, but for modular sums
      values = reinterpret_cast<const std::byte*>(widened.data());
    }
    clip::SquaredSum sum;
    clip::AddSquares(is_float ? result.dtype : DType::kFloat64, values, width, kInfinity, sum);
    const double total = sum.Total();
    norms[row] = std::isnan(total) ? kInfinity : total;
  }
  return norms;
}

// Which rows stay: those above `least`, and the first `num_ties` rows of norm `least`.
struct Threshold {
  double least = 0.0;
  uint64_t num_ties = std::numeric_limits<uint64_t>::max();
};

// Returns: the threshold that the `top_k` largest of the norms pass. 0: all.
Threshold FindThreshold(const Column<double>& norms, uint64_t top_k) {
  if (top_k == 0 || norms.size() <= top_k) return {};
  Column<double> ordered = norms;
  const auto last = ordered.begin() + (top_k - 1);
  std::nth_element(ordered.begin(), last, ordered.end(), std::greater<>());
  const auto larger = std::count_if(ordered.begin(), last, [&](double norm) { return norm > *last; });
  return {*last, top_k - static_cast<uint64_t>(larger)};
}

template <typename T>
void MoveRow(Column<T>& column, size_t width, uint64_t from, uint64_t to) {
  if (!column.empty()) std::memcpy(column.data() + to * width, column.data() + from * width, width * sizeof(T));
}

template <typename T>
void Shorten(Column<T>& column, uint64_t size) {
  if (column.empty()) return;
  column.resize(size);
  column.Trim();
}

}  // namespace

void CutResult(const TensorSpec& spec, Result& result) {
  const AggregationSpec& a = spec.aggregation;
  const bool may_be_cut = a.result_min_norm > 0.0 || (a.result_top_k > 0 && result.num_keys > a.result_top_k);
  if (!may_be_cut) return;
  const Column<double> norms = SquaredNorms(result);
  Threshold threshold = FindThreshold(norms, a.result_top_k);
  const size_t row_bytes = result.row_bytes();
  uint64_t kept = 0;
  for (uint64_t row = 0; row < norms.size(); ++row) {
    if (norms[row] < threshold.least) continue;
    if (norms[row] == threshold.least) {
      if (threshold.num_ties == 0) continue;
      --threshold.num_ties;
    }
    if (std::sqrt(norms[row]) < a.result_min_norm) continue;
    if (kept != row) {
      std::visit([&](auto& keys) { MoveRow(keys, 1, row, kept); }, result.keys);
      MoveRow(result.values, row_bytes, row, kept);
      MoveRow(result.counts, 1, row, kept);
      MoveRow(result.weights, 1, row, kept);
    }
    ++kept;
  }
  result.num_cut_keys += norms.size() - kept;
  result.num_keys = kept;
  std::visit([&](auto& keys) { Shorten(keys, kept); }, result.keys);
  Shorten(result.values, kept * row_bytes);
  Shorten(result.counts, kept);
  Shorten(result.weights, kept);
}

}  // namespace sparseagg
