// Merge of blocks of keys by one thread, for order statistics.
#ifndef SPARSEAGG_HOST_CPU_ORDER_ORDER_MERGER_H_
#define SPARSEAGG_HOST_CPU_ORDER_ORDER_MERGER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "host/accumulation.h"
#include "host/base/status_macros.h"
#include "host/cpu/merge/block_merger.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/order/entries.h"
#include "host/cpu/order/entry_gatherer.h"
#include "host/cpu/order/lane_kernels.h"
#include "host/cpu/order/lanes.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/tuning.h"

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

// Merger of blocks (as BlockMerger), owned by one thread of a merge: gathers the entries of each key, and evaluates the
// statistic of each of its columns. Keys whose votes have no weight get no row. Call MergeBlock for blocks in ascending
// order. Unusable after an error; discard it. Not thread-safe.
template <typename Key, typename T, typename Out>
class OrderMerger {
 public:
  // Of the folds whose rows of `Out` the sinks finish.
  using Rows = FoldedRows<Key, std::conditional_t<std::is_same_v<Out, double>, MinFloat, MinInteger>>;

  OrderMerger(const MergeInput<Key, SumFloat>& input, const Blocks<Key>& blocks, const StatisticParams& params)
      : input_(input),
        blocks_(blocks),
        shape_(input.shape),
        gatherer_(input),
        statistics_(params, shape_.columns),
        entries_(shape_.columns, params.by_weight || shape_.weights, params.needs_sources()) {}

  // As BlockMerger::MergeBlock. Errors: also those of Accumulator::Finish, for the smallest key concerned.
  template <typename RowSink>
  absl::Status MergeBlock(size_t index, RowSink& sink) {
    const Block<Key>& block = blocks_.blocks[index];
    if (block.first > next_key_) gatherer_.SkipTo(block.first);
    next_key_ = static_cast<Key>(block.last + 1);
    if (block.method == Method::kSort) {
      RETURN_IF_ERROR(gatherer_.GatherSparse(block, entries_));
      RETURN_IF_ERROR(Evaluate());
      return sink.WriteRows(rows_, {block.first, block.last, true});
    }
    const uint64_t span_minus_one = static_cast<uint64_t>(block.last) - block.first;
    const uint64_t window = WindowKeys(block, span_minus_one);
    for (uint64_t offset = 0;; offset += window) {
      const bool is_last = span_minus_one - offset < window;
      const uint64_t span = is_last ? span_minus_one - offset + 1 : window;
      const auto first = static_cast<Key>(block.first + offset);
      RETURN_IF_ERROR(gatherer_.GatherDense(first, span, entries_));
      RETURN_IF_ERROR(Evaluate());
      RETURN_IF_ERROR(sink.WriteRows(rows_, {first, static_cast<Key>(first + (span - 1)), is_last}));
      if (is_last) return absl::OkStatus();
    }
  }

 private:
  // Values of a window: few enough that they stay in the cache from the gathering to the statistic.
  static constexpr uint64_t kWindowValues = kTiny ? 64 : uint64_t{1} << 16;

  // Returns: keys of a window. Windows begin where the coarse order of the updates allows, as the block's own do.
  uint64_t WindowKeys(const Block<Key>& block, uint64_t span_minus_one) const {
    const double values = static_cast<double>(block.tuples) * static_cast<double>(shape_.columns);
    const double keys = static_cast<double>(kWindowValues) * (static_cast<double>(span_minus_one) + 1.0) / values;
    if (keys >= static_cast<double>(block.window_keys)) return block.window_keys;
    int coarse_bits = 0;
    for (const CpuUpdate* update : input_.updates) coarse_bits = std::max(coarse_bits, update->coarse_bits);
    const uint64_t align_mask = (uint64_t{1} << coarse_bits) - 1;
    return (std::max<uint64_t>(1, static_cast<uint64_t>(keys)) + align_mask) & ~align_mask;
  }

  absl::Status Evaluate() {
    const size_t n = entries_.size();
    rows_.resize(0, shape_);
    rows_.resize(n, shape_);
    std::copy_n(entries_.keys(), n, rows_.keys.data());
    if (shape_.counts) std::copy_n(entries_.counts(), n, rows_.counts.data());
    if (shape_.weights) SumWeights();
    if (const auto overflow = statistics_.Evaluate(entries_, rows_.accs.data()); overflow.has_value()) {
      return OverflowError(*input_.spec, {entries_.key(*overflow), entries_.count(*overflow)}, 0);
    }
    DropWeightless();
    return absl::OkStatus();
  }

  void DropWeightless() {
    absl::Span<const size_t> dropped = statistics_.weightless();
    if (dropped.empty()) return;
    size_t kept = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!dropped.empty() && dropped.front() == i) {
        while (!dropped.empty() && dropped.front() == i) dropped.remove_prefix(1);
        continue;
      }
      rows_.keys[kept] = rows_.keys[i];
      if (shape_.counts) rows_.counts[kept] = rows_.counts[i];
      if (shape_.weights) rows_.weights[kept] = rows_.weights[i];
      std::copy_n(rows_.accs.data() + i * shape_.columns, shape_.columns, rows_.accs.data() + kept * shape_.columns);
      ++kept;
    }
    rows_.resize(kept, shape_);
  }

  // Sums the weights of each key's contributors.
  void SumWeights() {
    for (size_t i = 0; i < entries_.size(); ++i) {
      const double* weight = entries_.weights() + entries_.place(i);
      WideBinnedSum sum;
      for (uint32_t p = 0; p < entries_.count(i); ++p, weight += entries_.step(i)) sum.Add(*weight);
      rows_.weights[i] = BinnedWeight(sum);
    }
  }

  const MergeInput<Key, SumFloat>& input_;
  const Blocks<Key>& blocks_;
  const RowShape shape_;
  Key next_key_ = 0;  // the cursors stand at their first key from here on
  EntryGatherer<Key, T> gatherer_;
  Statistics<Key, T, Out> statistics_;
  Entries<Key, T> entries_;
  Rows rows_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_ORDER_MERGER_H_
