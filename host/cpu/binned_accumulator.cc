#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/accumulation.h"
#include "host/base/binned.h"
#include "host/base/column.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/cpu/accumulators.h"
#include "host/cpu/finish/assemble.h"
#include "host/cpu/merge/parallel_merge.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/simd/kernels.h"
#include "host/cpu/tuning.h"
#include "host/cpu/update_list.h"
#include "host/result.h"
#include "host/spec/validate.h"
#include "host/unfinished_rows.h"

namespace sparseagg::cpu {
namespace {

// Values of a block, whose sums and values fit the first cache; a multiple of every vector.
constexpr uint64_t kBlockValues = kTiny ? 32 : 1024;
// Updates that are folded side by side. The hardware follows so many streams.
constexpr size_t kUpdatesAtOnce = 8;
// Pending updates of this part of the base's size are merged, since they would soon take more memory than the base.
constexpr uint64_t kBasePart = 10;

// Binned sums of many values.
template <class Sum>
class BinnedBase {
 public:
  static uint64_t BytesFor(uint64_t values) {
    return SaturatingMultiply(SaturatingAdd(values, kVectorSlack), Sum::kBins * sizeof(int64_t) + sizeof(uint8_t));
  }

  // Makes `values` sums without terms. Throws std::bad_alloc.
  void Reset(uint64_t values) {
    for (Column<int64_t>& digits : digits_) digits.resize(values + kVectorSlack);
    tops_.resize(values + kVectorSlack);
    for (Column<int64_t>& digits : digits_) std::fill(digits.begin(), digits.end(), 0);
    std::fill(tops_.begin(), tops_.end(), Sum().top);
  }

  bool empty() const { return tops_.empty(); }
  size_t memory_bytes() const { return tops_.size() * (Sum::kBins * sizeof(int64_t) + sizeof(uint8_t)); }
  // Returns: the sums from `first` on.
  BinnedColumns At(uint64_t first) {
    BinnedColumns columns;
    for (int k = 0; k < Sum::kBins; ++k) columns.digits[k] = digits_[k].data() + first;
    columns.tops = tops_.data() + first;
    return columns;
  }

 private:
  Column<int64_t> digits_[Sum::kBins];
  Column<uint8_t> tops_;
};

// The state of one tensor: pending updates, and the base, the sums of those merged earlier. The base is changed in
// place. Without one, Finish folds the updates block by block, and no sums are kept.
template <class Sum>
class BinnedAccumulator : public ListAccumulator {
 public:
  using ListAccumulator::ListAccumulator;

  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const override {
    return PrepareUpdate(spec_, update);
  }

  absl::Status Add(std::unique_ptr<PreparedUpdate> update) override {
    if (update->is_partial()) return AddPartial(static_cast<const PartialUpdate&>(*update));
    list_.Add(std::move(update));
    return absl::OkStatus();
  }

  Pending pending() const override {
    return {list_.pending().memory_bytes(), BinnedBase<Sum>::BytesFor(num_values_) / kBasePart};
  }

  absl::Status MergeFrom(Accumulator&& other) override {
    auto& from = static_cast<BinnedAccumulator&>(other);
    list_.MoveFrom(from.list_);
    if (base_.empty()) {
      base_ = std::move(from.base_);
    } else if (!from.base_.empty()) {
      ForBlocks([&](uint64_t first, uint64_t count) {
        const BinnedColumns into = base_.At(first);
        const BinnedColumns sums = from.base_.At(first);
        for (uint64_t i = 0; i < count; ++i) {
          Sum sum = BinnedAt<Sum>(into, i);
          sum.Merge(BinnedAt<Sum>(sums, i));
          SetBinned(sum, into, i);
        }
      });
    }
    from.base_ = {};
    partials_ = sparseagg::Sum(partials_, from.partials_);
    return absl::OkStatus();
  }

  bool KeepsAll() const override { return base_.empty(); }

  absl::Status FoldPending(SubmissionOrder) override {
    if (list_.updates().empty()) return absl::OkStatus();
    const std::vector<BinnedSource> sources = Sources();
    MakeBase();
    ForBlocks([&](uint64_t first, uint64_t count) { FoldBlock(sources, first, count, base_.At(first)); });
    list_.ClearUpdates();
    return absl::OkStatus();
  }

  absl::StatusOr<UnfinishedRows> ExportRows(uint64_t first, uint64_t last, uint64_t max_rows) override {
    RETURN_IF_ERROR(FoldPending({}));
    UnfinishedRows rows;
    if (base_.empty() || first >= spec_.num_rows || first > last) return rows;
    rows.num_rows = std::min({max_rows, spec_.num_rows - first, SaturatingAdd(last - first, 1)});
    const uint64_t num_values = rows.num_rows * spec_.row_width;
    rows.keys.resize(rows.num_rows * KeyBytes(spec_));
    rows.accs.resize(num_values * Sum::kBins * sizeof(int64_t));
    rows.tops.resize(num_values);
    const PartialTotals totals = Totals();  // of each key, as all submissions have all keys
    const auto count = static_cast<uint32_t>(totals.num_submissions);
    const BinnedWeights weights = BinnedWeights::Of(totals.binned_weights);
    for (uint64_t row = 0; row < rows.num_rows; ++row) {
      if (shape_.counts) rows.counts.Append(reinterpret_cast<const std::byte*>(&count), sizeof(count));
      if (shape_.weights) {
        rows.weights.Append(reinterpret_cast<const std::byte*>(&weights), sizeof(weights));
      }
    }
    const auto count_up = [&](auto* keys) { std::iota(keys, keys + rows.num_rows, first); };
    if (HasNarrowKeys(spec_)) {
      count_up(reinterpret_cast<uint32_t*>(rows.keys.data()));
    } else {
      count_up(reinterpret_cast<uint64_t*>(rows.keys.data()));
    }
    const BinnedColumns sums = base_.At(first * spec_.row_width);
    for (uint64_t i = 0; i < num_values; ++i) SetBinned(BinnedAt<Sum>(sums, i), i, rows);
    return rows;
  }

  absl::StatusOr<Result> Finish(SubmissionOrder order) && override {
    RETURN_IF_ERROR(CheckOrder(spec_, order, list_.weights().size()));
    const AggregationSpec& a = spec_.aggregation;
    const PartialTotals totals = Totals();
    const uint64_t contributors = totals.num_submissions;  // to each key, as all submissions have all keys
    const bool by_weight = a.weighting == Weighting::kByWeight;
    const double weight = by_weight ? totals.binned_weights.Value() : static_cast<double>(contributors);
    const double divisor = a.op == Op::kMean ? TotalWeight(spec_, totals) : weight;
    if (HasOneDivisor(spec_) && divisor == 0.0) return ZeroWeightError(spec_);
    const bool drops_all = contributors < a.min_contributors;
    const bool may_drop = a.prune_zeros || drops_all;
    const bool is_dense = IsDenseResult(spec_, may_drop ? 0 : spec_.num_rows);
    Result result = is_dense ? MakeDense(spec_) : MakeSparse(spec_, spec_.num_rows);
    WriteValues(HasOneDivisor(spec_) ? divisor : 1.0, result);
    std::fill(result.counts.begin(), result.counts.end(), static_cast<uint32_t>(contributors));
    std::fill(result.weights.begin(), result.weights.end(), weight);
    std::visit([](auto& keys) { std::iota(keys.begin(), keys.end(), 0); }, result.keys);
    const uint64_t num_updates = list_.updates().size();
    result.plan = absl::StrCat("binned sums, ", num_updates, " of ", contributors, " updates at the end");
    list_.ClearUpdates();
    base_ = {};
    return may_drop ? DropRows(drops_all, std::move(result)) : std::move(result);
  }

  size_t memory_bytes() const override { return list_.memory_bytes() + base_.memory_bytes(); }
  uint64_t FoldBytes(const PreparedUpdate*) const override {
    return base_.empty() ? BinnedBase<Sum>::BytesFor(num_values_) : 0;
  }
  uint64_t FinishBytes(const PreparedUpdate* next) const override {
    const bool is_dense = spec_.aggregation.result_layout == ResultLayout::kDense;
    const uint64_t bytes = is_dense ? DenseResultBytes(spec_) : ResultBytes(spec_, spec_.num_rows);
    return next != nullptr && next->is_partial() ? SaturatingAdd(bytes, FoldBytes(nullptr)) : bytes;
  }

 private:
  // Counts the submissions of a partial and merges its rows, or throws std::bad_alloc and does neither.
  absl::Status AddPartial(const PartialUpdate& partial) {
    MakeBase();
    list_.AddWeights(partial.weights());
    partials_ = sparseagg::Sum(partials_, partial.totals());
    const UnfinishedRows& rows = partial.rows();
    for (uint64_t row = 0; row < rows.num_rows; ++row) {
      const BinnedColumns into = base_.At(KeyAt(rows, row) * spec_.row_width);
      for (uint64_t i = 0; i < spec_.row_width; ++i) {
        Sum sum = BinnedAt<Sum>(into, i);
        sum.Merge(BinnedAt<Sum>(rows, row * spec_.row_width + i));
        SetBinned(sum, into, i);
      }
    }
    return absl::OkStatus();
  }
  uint64_t KeyAt(const UnfinishedRows& rows, uint64_t row) const {
    if (HasNarrowKeys(spec_)) return reinterpret_cast<const uint32_t*>(rows.keys.data())[row];
    return reinterpret_cast<const uint64_t*>(rows.keys.data())[row];
  }

  // Throws std::bad_alloc.
  void MakeBase() {
    if (!base_.empty()) return;
    BinnedBase<Sum> made;
    made.Reset(num_values_);
    base_ = std::move(made);
  }

  // Calls work(first, count) for all blocks, on the threads of the arena. `work` does not throw.
  template <typename Work>
  void ForBlocks(Work work) {
    OrderedBlockQueue queue((num_values_ + kBlockValues - 1) / kBlockValues);
    const auto run = [&] {
      for (size_t block; (block = queue.TakeBlock()) < queue.num_blocks();) {
        const uint64_t first = block * kBlockValues;
        work(first, std::min(kBlockValues, num_values_ - first));
      }
    };
    try {
      FoldInParallel(queue, arena_, run);
    } catch (const std::bad_alloc&) {
      run();  // there is no memory for tasks; each block is still done once
    }
  }

  std::vector<BinnedSource> Sources() const {
    std::vector<BinnedSource> sources;
    sources.reserve(list_.updates().size());
    list_.ForEach([&](const CpuUpdate& update) { sources.push_back({update.values, {update.factor, update.weight}}); });
    return sources;
  }

  // Adds values [first, first + count) of the sources to `sums`.
  void FoldBlock(const std::vector<BinnedSource>& sources, uint64_t first, uint64_t count, const BinnedColumns& sums) {
    for (size_t done = 0; done < sources.size(); done += kUpdatesAtOnce) {
      BinnedSource some[kUpdatesAtOnce];
      const size_t num = std::min(kUpdatesAtOnce, sources.size() - done);
      for (size_t i = 0; i < num; ++i) {
        some[i] = sources[done + i];
        some[i].values += first * SizeOf(spec_.dtype);
      }
      AddBinned(sums, spec_.dtype, some, num, count);
    }
  }

  // Writes the values of all rows.
  void WriteValues(double divisor, Result& result) {
    const std::vector<BinnedSource> sources = Sources();
    ForBlocks([&](uint64_t first, uint64_t count) {
      // Sums and values of this block. Not on the heap: this must not throw.
      alignas(64) int64_t digits[Sum::kBins][kBlockValues + kVectorSlack];
      uint8_t tops[kBlockValues + kVectorSlack];
      double values[kBlockValues + kVectorSlack];
      BinnedColumns sums;
      if (base_.empty()) {
        std::memset(digits, 0, sizeof(digits));
        std::memset(tops, Sum().top, sizeof(tops));
        for (int k = 0; k < Sum::kBins; ++k) sums.digits[k] = digits[k];
        sums.tops = tops;
      } else {
        sums = base_.At(first);
      }
      FoldBlock(sources, first, count, sums);
      BinnedValues(sums, spec_.dtype, count, values);
      if (divisor != 1.0) Divide(values, count, divisor);
      RoundTo(result.dtype, values, count, result.values.data() + first * SizeOf(result.dtype));
    });
  }

  // Drops the rows that min_contributors and prune_zeros remove: all have the same contributors.
  Result DropRows(bool drops_all, Result result) {
    const size_t row_bytes = result.row_bytes();
    const auto is_dropped = [&](uint64_t row) {
      const std::byte* const values = result.values.data() + row * row_bytes;
      return drops_all || std::all_of(values, values + row_bytes, [](std::byte b) { return b == std::byte{0}; });
    };
    if (result.layout == Layout::kDense) {
      const DenseFill fill(spec_);
      for (uint64_t row = 0; row < spec_.num_rows; ++row) {
        if (is_dropped(row)) fill.Rows(row, row + 1, result);
      }
      return result;
    }
    uint64_t kept = 0;
    for (uint64_t row = 0; row < spec_.num_rows; ++row) {
      if (is_dropped(row)) continue;
      std::visit([&](auto& keys) { keys[kept] = keys[row]; }, result.keys);
      std::memmove(result.values.data() + kept * row_bytes, result.values.data() + row * row_bytes, row_bytes);
      ++kept;  // counts and weights are the same of all rows
    }
    return CutAndLayOut(spec_, kept, std::move(result));
  }

  const uint64_t num_values_ = SaturatingMultiply(spec_.num_rows, spec_.row_width);
  BinnedBase<Sum> base_;
};

}  // namespace

std::unique_ptr<Accumulator> MakeBinnedAccumulator(const TensorSpec& spec, tbb::task_arena& arena) {
  if (spec.dtype == DType::kFloat64) return std::make_unique<BinnedAccumulator<WideBinnedSum>>(spec, arena);
  return std::make_unique<BinnedAccumulator<NarrowBinnedSum>>(spec, arena);
}

}  // namespace sparseagg::cpu
