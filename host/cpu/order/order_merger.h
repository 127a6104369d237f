// Merge of blocks of keys by one thread, for order statistics.
#ifndef SPARSEAGG_HOST_CPU_ORDER_ORDER_MERGER_H_
#define SPARSEAGG_HOST_CPU_ORDER_ORDER_MERGER_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "host/accumulation.h"
#include "host/base/status_macros.h"
#include "host/cpu/merge/block_merger.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/merge_input.h"
#include "host/cpu/order/entries.h"
#include "host/cpu/order/entry_gatherer.h"
#include "host/cpu/order/lanes.h"
#include "host/cpu/order/statistics.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/tuning.h"

namespace sparseagg::cpu {

// Merger of blocks (as BlockMerger), owned by one thread of a merge: gathers the entries of each key, and evaluates the
// statistic of each of its columns. Keys whose votes have no weight get no row. Call MergeBlock for blocks in ascending
// order. Unusable after an error; discard it. Not thread-safe.
template <typename Key, typename T, typename Out>
class OrderMerger {
 public:
  using Rows = FoldedRows<Key, Out>;

  OrderMerger(const MergeInput<Key, SumFloat>& input, const StatisticParams& params)
      : input_(input),
        params_(params),
        shape_(input.shape),
        gatherer_(input),
        statistics_(params, shape_.columns),
        entries_(shape_.columns, params.by_weight || shape_.key_weights != KeyWeights::kNone, params.needs_sources()) {}

  // As BlockMerger::MergeBlock. Errors: also those of Accumulator::Finish, for the smallest key concerned.
  template <typename RowSink>
  absl::Status MergeBlock(const Block<Key>& block, RowSink& sink) {
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
    if (shape_.key_weights != KeyWeights::kNone) SumWeights();
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
      if (shape_.key_weights != KeyWeights::kNone) rows_.weights[kept] = rows_.weights[i];
      std::copy_n(rows_.accs.data() + i * shape_.columns, shape_.columns, rows_.accs.data() + kept * shape_.columns);
      ++kept;
    }
    rows_.resize(kept, shape_);
  }

  // Sums the weights of each key's contributors, in canonical order.
  void SumWeights() {
    for (size_t i = 0; i < entries_.size(); ++i) {
      const double* weight = entries_.weights() + entries_.place(i);
      double sum = 0.0;
      for (uint32_t p = 0; p < entries_.count(i); ++p, weight += entries_.step(i)) sum += *weight;
      rows_.weights[i] = std::bit_cast<uint64_t>(sum);
    }
  }

  const MergeInput<Key, SumFloat>& input_;
  const StatisticParams& params_;
  const RowShape shape_;
  Key next_key_ = 0;  // the cursors stand at their first key from here on
  EntryGatherer<Key, T> gatherer_;
  Statistics<Key, T, Out> statistics_;
  Entries<Key, T> entries_;
  Rows rows_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_ORDER_MERGER_H_
