#include "host/result_cut.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <variant>

#include "host/base/column.h"
#include "host/clip/clip_kernels.h"

namespace sparseagg {
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
