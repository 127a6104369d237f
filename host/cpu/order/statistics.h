// Order statistics of all keys of some entries.
#ifndef SPARSEAGG_HOST_CPU_ORDER_STATISTICS_H_
#define SPARSEAGG_HOST_CPU_ORDER_STATISTICS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "host/cpu/order/entries.h"
#include "host/cpu/order/lane_kernels.h"
#include "host/cpu/order/lanes.h"

namespace sparseagg::cpu {

// Evaluator of the statistic of every key and column: kGroupLanes lanes at a time with the kernels where these serve,
// else one by one. Owned by one thread of a merge. Not thread-safe.
template <typename Key, typename T, typename Out>
class Statistics {
 public:
  Statistics(const StatisticParams& params, size_t columns) : params_(params), columns_(columns), evaluator_(params) {}

  // Writes the row of key i of `entries` to `out`, row i; of a key of weightless() any row. Rows are unspecified after
  // an overflow. Returns: the index of the first key whose statistic overflows int64; nullopt: none.
  std::optional<size_t> Evaluate(Entries<Key, T>& entries, Out* out) {
    overflow_.reset();
    weightless_.clear();
    for (const EntryGroup& group : entries.groups()) EvaluateGroup(entries, group, out);
    for (size_t i = entries.num_grouped(); i < entries.size(); ++i) EvaluateKey(entries, entries.by_count()[i], out);
    std::sort(weightless_.begin(), weightless_.end());
    return overflow_;
  }

  // Returns: the indices of the keys whose votes in a column have no weight, so that they have no statistic, of the
  // last Evaluate; ascending, with repeats.
  absl::Span<const size_t> weightless() const { return weightless_; }

 private:
  bool HasKernel() const {
    if (params_.op != Op::kTrimmedMean) return !params_.by_weight;
    return !std::is_same_v<T, int64_t> && !params_.needs_sources();
  }

  void EvaluateGroup(Entries<Key, T>& entries, const EntryGroup& group, Out* out) {
    const uint32_t* const keys = entries.by_count().data() + group.first;
    if (!HasKernel()) {
      for (uint32_t lane = 0; lane < group.keys; ++lane) EvaluateOne(entries, keys[lane], out);
      return;
    }
    Planes<T> planes;
    planes.values = entries.ValuesAt(group.place, /*is_grouped=*/true);
    planes.step = kGroupLanes * columns_;
    planes.count = group.count;
    PlaneWeights weights;
    if (params_.by_weight) weights = {entries.weights() + group.place, kGroupLanes, 1};
    for (size_t c = 0; c < columns_; ++c, planes.values += kGroupLanes) {
      EvaluatePlanes(
          planes, weights, group.keys,
          [&](size_t lane) {
            return Cell{keys[lane], c};
          },
          out);
    }
  }

  void EvaluateKey(Entries<Key, T>& entries, size_t key, Out* out) {
    if (!HasKernel() || entries.count(key) > kMaxNetwork) return EvaluateOne(entries, key, out);
    Planes<T> planes;
    planes.values = entries.ValuesAt(entries.place(key), /*is_grouped=*/false);
    planes.step = columns_;
    planes.count = entries.count(key);
    PlaneWeights weights;
    if (params_.by_weight) weights = {entries.weights() + entries.place(key), 1, 0};
    for (size_t c = 0; c < columns_; c += kGroupLanes, planes.values += kGroupLanes) {
      EvaluatePlanes(
          planes, weights, std::min(kGroupLanes, columns_ - c),
          [&](size_t lane) {
            return Cell{key, c + lane};
          },
          out);
    }
  }

  // Returns: the network for some ranks of the votes. Where zeros vote, too, they are not the ranks of the values.
  absl::Span<const Comparator> NetworkFor(const Planes<T>& planes, absl::Span<const uint64_t> ranks) {
    return networks_.Find(planes.count, planes.zeros > 0 ? absl::Span<const uint64_t>() : ranks);
  }

  // The key's index and the column of a lane.
  struct Cell {
    size_t key;
    size_t column;
  };

  // Evaluates the first `lanes` lanes of `planes`.
  template <typename CellOf>
  void EvaluatePlanes(Planes<T>& planes, const PlaneWeights& weights, size_t lanes, CellOf cell_of, Out* out) {
    planes.zeros = params_.NumVotes(planes.count) - planes.count;
    const uint64_t votes = planes.votes();
    const auto at = [&](size_t lane) -> Out& {
      const Cell cell = cell_of(lane);
      return out[cell.key * columns_ + cell.column];
    };
    if (params_.op == Op::kTrimmedMean) {
      if constexpr (!std::is_same_v<T, int64_t>) {
        double sums[kGroupLanes];
        double divisors[kGroupLanes];
        const uint64_t trim = TrimOf(params_.order, votes);
        planes.network = NetworkFor(planes, TrimmedRanks(votes, trim));
        TrimmedSums(planes, weights, trim, sums, divisors);
        for (size_t lane = 0; lane < lanes; ++lane) {
          at(lane) = sums[lane] / divisors[lane];
          if (divisors[lane] == 0.0) weightless_.push_back(cell_of(lane).key);
        }
      }
      return;
    }
    const bool is_quantile = params_.op == Op::kQuantile;
    const uint64_t low = is_quantile ? QuantileIndex(*params_.order.quantile, votes) : (votes - 1) / 2;
    const uint64_t high = is_quantile ? low : votes / 2;
    planes.network = NetworkFor(planes, std::array{low, high});
    T at_low[kGroupLanes];
    T at_high[kGroupLanes];
    PickRanks(planes, low, high, at_low, at_high);
    for (size_t lane = 0; lane < lanes; ++lane) {
      at(lane) = low == high ? HalfWay<Out>::Single(at_low[lane], params_.dtype)
                             : HalfWay<Out>::Between(at_low[lane], at_high[lane], params_.dtype);
    }
  }

  void EvaluateOne(Entries<Key, T>& entries, size_t key, Out* out) {
    const LaneError error = evaluator_.Evaluate(entries.RowsOf(key), out + key * columns_);
    if (error == LaneError::kZeroWeight) weightless_.push_back(key);
    if (error == LaneError::kOverflow) overflow_ = std::min(key, overflow_.value_or(key));
  }

  const StatisticParams& params_;
  const size_t columns_;
  LaneEvaluator<T, Out> evaluator_;
  NetworkCache networks_;
  std::optional<size_t> overflow_;
  std::vector<size_t> weightless_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_STATISTICS_H_
