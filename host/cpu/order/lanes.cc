#include "host/cpu/order/lanes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace sparseagg::cpu {

std::vector<Comparator> SelectingNetwork(size_t count, absl::Span<const uint64_t> ranks) {
  const size_t run = RunOf(count);
  const size_t sorted = run == 0 ? 0 : count / run * run;  // values in whole runs
  std::vector<Comparator> network;
  ForSortingNetwork(count, [&](Comparator comparator, size_t phase) {
    if (phase >= run || comparator.high >= sorted) network.push_back(comparator);
  });
  // Backwards: a comparator matters if one of its two values goes on to a rank or to a comparator that matters.
  std::array<bool, kMaxNetwork> matters = {};
  if (ranks.empty()) matters.fill(true);
  for (const uint64_t rank : ranks) matters[rank] = true;
  std::vector<Comparator> kept;
  for (auto it = network.rbegin(); it != network.rend(); ++it) {
    if (!matters[it->low] && !matters[it->high]) continue;
    matters[it->low] = matters[it->high] = true;
    kept.push_back(*it);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

const std::vector<Comparator>& NetworkCache::Find(size_t count, absl::Span<const uint64_t> ranks) {
  Entry& entry = entries_[count];
  if (!entry.is_made || absl::MakeConstSpan(entry.ranks) != ranks) {
    entry.network = SelectingNetwork(count, ranks);
    entry.ranks.assign(ranks.begin(), ranks.end());
    entry.is_made = true;
  }
  return entry.network;
}

namespace {

template <typename T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

// Errors: kOverflow if the mean of integers leaves int64.
template <typename Out>
LaneError MeanOf(double sum, double divisor, Out& out) {
  const double mean = sum / divisor;
  if constexpr (std::is_same_v<Out, int64_t>) {
    const double rounded = std::rint(mean);
    if (!(rounded >= -0x1p63 && rounded < 0x1p63)) return LaneError::kOverflow;
    out = static_cast<int64_t>(rounded);
  } else {
    out = mean;
  }
  return LaneError::kNone;
}

}  // namespace

template <typename T, typename Out>
LaneError LaneEvaluator<T, Out>::Evaluate(const LaneRows<T>& rows, Out* out) {
  LaneError found = LaneError::kNone;
  for (size_t column = 0; column < rows.columns; ++column) {
    LoadVotes(rows, column);
    const LaneError error = EvaluateLane(out[column]);
    if (error == LaneError::kZeroWeight) return error;
    if (error != LaneError::kNone) found = error;
  }
  return found;
}

template <typename T, typename Out>
void LaneEvaluator<T, Out>::LoadVotes(const LaneRows<T>& rows, size_t column) {
  const T* const values = rows.values + column * rows.column_step;
  const auto value_at = [&](size_t row) { return values[row * rows.row_step] + T{0}; };  // −0 + 0 = +0
  values_.clear();
  weights_.clear();
  num_zeros_ = 0;
  if (!params_.by_weight) {
    for (size_t row = 0; row < rows.count; ++row) values_.push_back(value_at(row));
    num_zeros_ = params_.NumVotes(rows.count) - rows.count;
    return;
  }
  if (!params_.absent_is_zero()) {
    for (size_t row = 0; row < rows.count; ++row) {
      values_.push_back(value_at(row));
      weights_.push_back(rows.weights[row * rows.place_step]);
    }
    return;
  }
  values_.resize(params_.num_submissions);
  std::fill(values_.begin(), values_.end(), T{0});
  weights_ = params_.weights;
  for (size_t row = 0; row < rows.count; ++row) {
    values_[params_.position[rows.sources[row * rows.place_step]]] = value_at(row);
  }
}

template <typename T, typename Out>
LaneError LaneEvaluator<T, Out>::EvaluateLane(Out& out) {
  const bool has_nan = std::any_of(values_.begin(), values_.end(), IsNan<T>);
  if (params_.by_weight) {
    const bool has_weight = std::any_of(weights_.begin(), weights_.end(), [](double weight) { return weight > 0; });
    if (!has_weight) return LaneError::kZeroWeight;
  }
  if (has_nan) {
    out = static_cast<Out>(std::numeric_limits<double>::quiet_NaN());  // integers are never NaN
    return LaneError::kNone;
  }
  const double q = params_.op == Op::kMedian ? 0.5 : params_.order.quantile.value_or(0.0);
  if (params_.op == Op::kTrimmedMean) return TrimmedMean(out);
  if (params_.by_weight) return WeightedQuantile(q, out);
  sorted_ = values_;
  const uint64_t votes = values_.size() + num_zeros_;
  if (params_.op == Op::kQuantile) {
    out = HalfWay<Out>::Single(SelectVote(QuantileIndex(q, votes)), params_.dtype);
  } else if (votes % 2 == 1) {
    out = HalfWay<Out>::Single(SelectVote(votes / 2), params_.dtype);
  } else {
    const T low = SelectVote(votes / 2 - 1);
    out = HalfWay<Out>::Between(low, SelectVote(votes / 2), params_.dtype);
  }
  return LaneError::kNone;
}

// Returns: the vote at `rank`. Reorders sorted_. Cost: O(n) on average.
template <typename T, typename Out>
T LaneEvaluator<T, Out>::SelectVote(uint64_t rank) {
  const auto select = [this](uint64_t index) {
    const auto at = sorted_.begin() + static_cast<std::ptrdiff_t>(index);
    std::nth_element(sorted_.begin(), at, sorted_.end());
    return *at;
  };
  if (num_zeros_ == 0) return select(rank);
  // Negative values keep their rank; positive ones follow the zeros.
  if (rank < sorted_.size()) {
    if (const T value = select(rank); value < T{0}) return value;
  }
  return rank >= num_zeros_ ? std::max(T{0}, select(rank - num_zeros_)) : T{0};
}

template <typename T, typename Out>
LaneError LaneEvaluator<T, Out>::WeightedQuantile(double q, Out& out) {
  order_.clear();
  for (uint32_t i = 0; i < values_.size(); ++i) {
    if (weights_[i] > 0) order_.push_back(i);
  }
  std::sort(order_.begin(), order_.end(),
            [this](uint32_t a, uint32_t b) { return values_[a] != values_[b] ? values_[a] < values_[b] : a < b; });
  double total = 0.0;
  for (const uint32_t i : order_) total += weights_[i];
  const double target = q * total;
  double cumulative = 0.0;
  for (size_t place = 0; place < order_.size(); ++place) {
    const uint32_t i = order_[place];
    cumulative += weights_[i];
    if (cumulative < target) continue;
    const uint32_t next = cumulative == target ? order_[std::min(place + 1, order_.size() - 1)] : i;
    out = next == i ? HalfWay<Out>::Single(values_[i], params_.dtype)
                    : HalfWay<Out>::Between(values_[i], values_[next], params_.dtype);
    break;
  }
  return LaneError::kNone;
}

template <typename T, typename Out>
LaneError LaneEvaluator<T, Out>::TrimmedMean(Out& out) {
  const uint64_t votes = values_.size() + num_zeros_;
  const uint64_t trim = TrimOf(params_.order, votes);
  sorted_ = values_;
  const T low = SelectVote(trim);
  const T high = SelectVote(votes - 1 - trim);
  // Of the values that equal a threshold, the lowest and the highest in canonical order are dropped. Zeros that are not
  // listed have no place in that order; they and the listed zeros add nothing to a sum without weights.
  const bool any_zero = num_zeros_ > 0;
  uint64_t drop_low = trim - (low > T{0} ? num_zeros_ : 0);
  uint64_t drop_high = trim - (high < T{0} ? num_zeros_ : 0);
  uint64_t keep_high = 0;
  for (const T value : values_) {
    drop_low -= value < low ? 1 : 0;
    drop_high -= value > high ? 1 : 0;
    keep_high += value == high ? 1 : 0;
  }
  keep_high -= drop_high;
  using Sum = std::conditional_t<std::is_same_v<T, int64_t>, __int128, double>;
  Sum sum = 0;
  double divisor = 0.0;
  uint64_t num_low = 0;
  uint64_t num_high = 0;
  for (size_t i = 0; i < values_.size(); ++i) {
    const T value = values_[i];
    const bool stays_at_low = value != low || num_low++ >= drop_low;
    const bool stays_at_high = value != high || num_high++ < keep_high;
    const bool stays =
        value >= low && value <= high && ((stays_at_low && stays_at_high) || (any_zero && value == T{0}));
    if (!stays) continue;
    if (!params_.by_weight) {
      sum += static_cast<Sum>(value);
    } else {
      divisor += weights_[i];
      if constexpr (std::is_same_v<T, int64_t>) {
        sum += value * static_cast<int64_t>(weights_[i]);
      } else {
        sum += weights_[i] * static_cast<double>(value);
      }
    }
  }
  if (!params_.by_weight) divisor = static_cast<double>(votes - 2 * trim);
  if (divisor == 0.0) return LaneError::kZeroWeight;
  if constexpr (std::is_same_v<T, int64_t>) {
    if (sum < std::numeric_limits<int64_t>::min() || sum > std::numeric_limits<int64_t>::max()) {
      return LaneError::kOverflow;
    }
    return MeanOf(static_cast<double>(static_cast<int64_t>(sum)), divisor, out);
  } else {
    return MeanOf(sum, divisor, out);
  }
}

template class LaneEvaluator<float, double>;
template class LaneEvaluator<double, double>;
template class LaneEvaluator<int64_t, double>;
template class LaneEvaluator<int64_t, int64_t>;

}  // namespace sparseagg::cpu
