// Finishing: from folded rows to result rows, by dividing, dropping rows, and rounding to the result's dtype at the
// end.
#ifndef SPARSEAGG_HOST_CPU_FINISH_ROW_FINISHER_H_
#define SPARSEAGG_HOST_CPU_FINISH_ROW_FINISHER_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/status/status.h"
#include "host/accumulation.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"
#include "host/cpu/finish/assemble.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/simd/kernels.h"
#include "host/cpu/tuning.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// What finishing needs besides the rows. The same for all threads of a merge.
struct FinishParams {
  const TensorSpec* spec = nullptr;
  RowShape shape;
  double total_weight = 0.0;         // kMean: the divisor of every key
  bool has_positive_weights = true;  // all weights are above 0, so that no sum of them is 0
};

// Finisher of the rows of one key range after another, owned by a row sink. Two steps, since the place of a key range
// in the result depends on how many rows stay:
//
//   RowFinisher<Key, Fold> finisher(params);
//   RETURN_IF_ERROR(finisher.Prepare(rows));           // divides, checks, rounds, drops rows
//   finisher.Write(keys, values, counts, weights, at); // the finisher.size() rows that stay
//
// If IsDirect(), the fold can do all this itself: DirectOutputAt says where and how. Not thread-safe.
template <typename Key, typename Fold>
class RowFinisher {
 public:
  using Acc = typename Fold::Acc;
  using Rows = FoldedRows<Key, Fold>;
  static constexpr bool kInteger =
      std::is_same_v<Fold, SumInteger> || std::is_same_v<Fold, MinInteger> || std::is_same_v<Fold, MaxInteger>;
  static constexpr bool kModular = std::is_same_v<Fold, SumModular>;

  explicit RowFinisher(const FinishParams& params)
      : params_(params),
        columns_(params.shape.columns),
        dtype_(ResultDType(*params.spec)),
        row_bytes_(columns_ * SizeOf(dtype_)) {}

  // Returns: whether the fold can write finished rows itself: of a float64 sum or mean with a float32 or float64
  // result, where no row is dropped, and no division by 0 is possible.
  bool IsDirect() const {
    const AggregationSpec& a = params_.spec->aggregation;
    if (!std::is_same_v<Fold, SumFloat>) return false;
    if (a.op == Op::kMean && params_.total_weight == 0.0) return false;
    if (a.op == Op::kCoordinateMean && !params_.has_positive_weights) return false;
    if (columns_ == 0 || (dtype_ != DType::kFloat32 && dtype_ != DType::kFloat64)) return false;
    // Returned weights that are counts are converted.
    return !a.prune_zeros && a.min_contributors <= 1 && (!a.return_weights || params_.shape.weights);
  }

  // Returns: the direct output that begins at row `at` of the result's columns.
  // Requires: IsDirect().
  DirectOutput<Key> DirectOutputAt(Column<Key>& keys, Column<std::byte>& values, Column<uint32_t>& counts,
                                   Column<double>& weights, uint64_t at) const {
    const AggregationSpec& a = params_.spec->aggregation;
    DirectOutput<Key> output;
    output.keys = keys.data() + at;
    output.columns = columns_;
    if (ReturnsCounts(*params_.spec)) output.counts = counts.data() + at;
    output.dtype = dtype_;
    output.values = values.data() + at * output.row_bytes();
    output.streams = values.size() >= kStreamedBytes;
    if (a.op == Op::kMean) output.divided_by = DividedBy::kTotal;
    if (a.op == Op::kCoordinateMean) {
      output.divided_by = params_.shape.weights ? DividedBy::kWeight : DividedBy::kCount;
    }
    output.total = params_.total_weight;
    if (a.return_weights) output.weights = weights.data() + at;
    return output;
  }

  // Divides, checks, rounds and drops rows. Works in place: `rows` is changed, and must stay until Write.
  // Errors: OUT_OF_RANGE, FAILED_PRECONDITION as of Accumulator::Finish, for the smallest key concerned.
  absl::Status Prepare(Rows& rows) {
    rows_ = &rows;
    size_ = rows.size();
    const AggregationSpec& a = params_.spec->aggregation;
    if (HasOneDivisor(*params_.spec) && size_ > 0 && Divisor(0) == 0.0) return ZeroWeightError(*params_.spec);
    if (a.op == Op::kCoordinateMean && !params_.has_positive_weights) {
      DropRows([this](size_t i) { return KeyWeight(i) == 0.0; }, rows.accs.data(), columns_);
    }
    values_.resize(size_ * row_bytes_);
    if constexpr (kInteger) RETURN_IF_ERROR(FinishIntegers());
    if constexpr (kModular) {
      FinishModular();
    } else if constexpr (!kInteger) {
      FinishFloats();
    }
    if (a.prune_zeros || a.min_contributors > 1) {
      const auto is_dropped = [&](size_t i) {
        return (a.min_contributors > 1 && rows_->counts[i] < a.min_contributors) ||
               (a.prune_zeros && columns_ > 0 && IsZeroRow(i));
      };
      DropRows(is_dropped, values_.data(), row_bytes_);
    }
    return absl::OkStatus();
  }

  // Returns: the number of rows that stay, after Prepare.
  size_t size() const { return size_; }

  // Writes the rows that stay to rows [at, at + size()) of the columns.
  // Requires: the columns are large enough.
  void Write(Column<Key>& keys, Column<std::byte>& values, Column<uint32_t>& counts, Column<double>& weights,
             uint64_t at) const {
    std::copy_n(rows_->keys.data(), size_, keys.data() + at);
    std::copy_n(values_.data(), size_ * row_bytes_, values.data() + at * row_bytes_);
    if (ReturnsCounts(*params_.spec)) std::copy_n(rows_->counts.data(), size_, counts.data() + at);
    if (params_.spec->aggregation.return_weights) {
      for (size_t i = 0; i < size_; ++i) weights[at + i] = KeyWeight(i);
    }
  }

 private:
  // Returns: the sum of the weights of the contributors of row i.
  double KeyWeight(size_t i) const {
    if (!params_.shape.weights) return rows_->counts[i];
    return WeightValue(rows_->weights[i]);
  }

  // Returns: the divisor of row i; 0 if it is not divided.
  double Divisor(size_t i) const {
    switch (params_.spec->aggregation.op) {
      case Op::kMean:
        return params_.total_weight;
      case Op::kCoordinateMean:
        return KeyWeight(i);
      default:
        return 0.0;
    }
  }

  void FinishModular() {
    const size_t bytes = SizeOf(dtype_);  // the low bytes are the sum modulo 2^32 or 2^64 (little-endian)
    for (size_t i = 0; i < size_ * columns_; ++i) std::memcpy(values_.data() + i * bytes, &rows_->accs[i], bytes);
  }

  // Divides in place if the accumulators are float64.
  void FinishFloats() {
    const size_t n = size_ * columns_;
    double* floats;
    if constexpr (std::is_same_v<Acc, double>) {
      floats = rows_->accs.data();
    } else {
      floats_.resize(n);
      floats = floats_.data();
      for (size_t i = 0; i < n; ++i) floats[i] = rows_->accs[i].Get().Value();
    }
    const Op op = params_.spec->aggregation.op;
    if (op == Op::kMean) Divide(floats, n, params_.total_weight);
    if (op == Op::kCoordinateMean) {
      for (size_t i = 0; i < size_; ++i) {
        const double divisor = KeyWeight(i);
        for (size_t c = 0; c < columns_; ++c) floats[i * columns_ + c] /= divisor;
      }
    }
    RoundTo(dtype_, floats, n, values_.data());
  }

  // Finishes rows of integers. Means are rounded to int64 unless the result dtype is a float.
  // Errors: OUT_OF_RANGE for a sum or mean that does not fit int64.
  absl::Status FinishIntegers() {
    const size_t n = size_ * columns_;
    const bool to_float = IsFloat(dtype_);
    if (to_float) floats_.resize(n);
    auto* const integers = reinterpret_cast<int64_t*>(values_.data());
    for (size_t i = 0; i < n; ++i) {
      const Acc acc = rows_->accs[i];
      if (acc < std::numeric_limits<int64_t>::min() || acc > std::numeric_limits<int64_t>::max()) return Overflow(i);
      const auto sum = static_cast<int64_t>(acc);
      const double divisor = Divisor(i / columns_);
      if (to_float) {
        // To float32 directly from int64: via float64 it would be rounded twice.
        floats_[i] = divisor != 0.0              ? static_cast<double>(sum) / divisor
                     : dtype_ == DType::kFloat32 ? static_cast<double>(static_cast<float>(sum))
                                                 : static_cast<double>(sum);
      } else if (divisor == 0.0) {
        integers[i] = sum;
      } else {
        const double mean = std::rint(static_cast<double>(sum) / divisor);
        if (!(mean >= -0x1p63 && mean < 0x1p63)) return Overflow(i);
        integers[i] = static_cast<int64_t>(mean);
      }
    }
    if (to_float) RoundTo(dtype_, floats_.data(), n, values_.data());
    return absl::OkStatus();
  }

  // Returns: whether all bytes of row i are 0. RoundTo makes −0.0 to +0.0, so this means that all values are 0.
  bool IsZeroRow(size_t i) const {
    const std::byte* const row = values_.data() + i * row_bytes_;
    // Equal to itself shifted by a byte: all bytes equal the first.
    return row[0] == std::byte{0} && std::memcmp(row, row + 1, row_bytes_ - 1) == 0;
  }

  // Drops the rows for which `is_dropped` is true, and moves the others to the front. `values`: those of the rows,
  // `row_size` of each: folded, or finished.
  template <typename IsDropped, typename Value>
  void DropRows(const IsDropped& is_dropped, Value* values, size_t row_size) {
    size_t kept = 0;
    for (size_t i = 0; i < size_; ++i) {
      if (is_dropped(i)) continue;
      if (i != kept) {
        rows_->keys[kept] = rows_->keys[i];
        if (params_.shape.counts) rows_->counts[kept] = rows_->counts[i];
        if (params_.shape.weights) rows_->weights[kept] = rows_->weights[i];
        std::copy_n(values + i * row_size, row_size, values + kept * row_size);
      }
      ++kept;
    }
    size_ = kept;
  }

  FailedRow FailedAt(size_t row) const { return {rows_->keys[row], params_.shape.counts ? rows_->counts[row] : 0}; }
  absl::Status Overflow(size_t value) const {
    return OverflowError(*params_.spec, FailedAt(value / columns_), value % columns_);
  }

  const FinishParams& params_;
  const size_t columns_;
  const DType dtype_;
  const size_t row_bytes_;
  Rows* rows_ = nullptr;
  size_t size_ = 0;
  Column<double> floats_;
  Column<std::byte> values_;  // finished values, in the result's dtype
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_FINISH_ROW_FINISHER_H_
