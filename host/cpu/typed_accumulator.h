// Accumulator of the CPU engine for one type of key and one fold.
#ifndef SPARSEAGG_HOST_CPU_TYPED_ACCUMULATOR_H_
#define SPARSEAGG_HOST_CPU_TYPED_ACCUMULATOR_H_

#include <tbb/parallel_for.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>
#include <list>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/accumulation.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/cpu/accumulators.h"
#include "host/cpu/finish/assemble.h"
#include "host/cpu/finish/row_finisher.h"
#include "host/cpu/finish/row_sinks.h"
#include "host/cpu/merge/combine_rows.h"
#include "host/cpu/merge/lone_merge.h"
#include "host/cpu/merge/parallel_merge.h"
#include "host/cpu/merge/sort_fold.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/tuning.h"
#include "host/cpu/update_list.h"
#include "host/result.h"
#include "host/spec/spec.h"
#include "host/unfinished_rows.h"

namespace sparseagg::cpu {

// The state of one tensor: pending updates, and the base, the rows merged earlier. Rows of partials are pending as runs
// beside the base.
//
//   auto accumulator = MakeTypedAccumulator<SumFloat>(spec, arena);
//   RETURN_IF_ERROR(accumulator->Add(*accumulator->Prepare(std::move(update))));   // for each submission
//   ASSIGN_OR_RETURN(Result result, std::move(*accumulator).Finish(order));
template <typename Key, typename Fold>
class TypedAccumulator : public ListAccumulator {
 public:
  using Rows = FoldedRows<Key, Fold>;
  using Input = MergeInput<Key, Fold>;

  using ListAccumulator::ListAccumulator;

  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const override {
    // Only the rows of a lone update may stay unfolded: others are folded here, beside other updates.
    return PrepareUpdate(spec_, update, std::is_same_v<Fold, SumFloat> && !has_keys_.load(std::memory_order_relaxed));
  }

  absl::Status Add(std::unique_ptr<PreparedUpdate> update) override {
    if (update->is_partial()) return AddPartial(static_cast<const PartialUpdate&>(*update));
    if (!list_.Add(std::move(update))) return absl::OkStatus();
    has_keys_.store(true, std::memory_order_relaxed);
    return absl::OkStatus();
  }

  Pending pending() const override {
    if (!merges_on_arrival_) return {};
    Pending pending{list_.pending().memory_bytes(), base_.memory_bytes()};
    for (const Rows& run : runs_) pending.bytes += run.memory_bytes();
    return pending;
  }

  // Where the order matters, neither must have folded any.
  absl::Status MergeFrom(Accumulator&& other) override {
    auto& from = static_cast<TypedAccumulator&>(other);
    list_.MoveFrom(from.list_);
    if (from.has_keys_) has_keys_ = true;
    num_folded_ += from.num_folded_;
    has_partials_ |= from.has_partials_;
    partials_ = Sum(partials_, from.partials_);
    if (base_.size() == 0) {
      base_ = std::move(from.base_);
    } else if (from.base_.size() > 0) {
      runs_.push_back(std::move(from.base_));
    }
    runs_.splice(runs_.end(), from.runs_);
    return absl::OkStatus();
  }

  bool KeepsAll() const override { return num_folded_ == 0 && !has_partials_; }

  absl::Status FoldPending(SubmissionOrder order) override {
    CombineRuns();
    if (merges_on_arrival_) return list_.pending().num_keys() == 0 ? absl::OkStatus() : MergeIntoBase(MakeInput());
    ASSIGN_OR_RETURN(Input input, MakeInput(order));
    return list_.updates().empty() ? absl::OkStatus() : MergeIntoBase(std::move(input));
  }

  absl::StatusOr<UnfinishedRows> ExportRows(uint64_t first, uint64_t last, uint64_t max_rows) override {
    RETURN_IF_ERROR(FoldPending({}));
    const auto begin = std::lower_bound(base_.keys.begin(), base_.keys.end(), first);
    const auto end = std::upper_bound(begin, base_.keys.end(), last);
    const auto at = static_cast<size_t>(begin - base_.keys.begin());
    UnfinishedRows rows;
    rows.num_rows = std::min(max_rows, static_cast<uint64_t>(end - begin));
    const auto copy = [&](const auto& column, size_t columns, Column<std::byte>& out) {
      if (column.empty()) return;
      const size_t row_bytes = columns * sizeof(column[0]);
      out.Append(reinterpret_cast<const std::byte*>(column.data()) + at * row_bytes, rows.num_rows * row_bytes);
    };
    copy(base_.keys, 1, rows.keys);
    copy(base_.counts, 1, rows.counts);
    if constexpr (kHasBinnedAccs) {
      rows.tops.resize(rows.num_rows * shape_.columns);
      rows.accs.resize(rows.tops.size() * Fold::Acc::kBins * sizeof(int64_t));
      for (size_t i = 0; i < rows.tops.size(); ++i) SetBinned(base_.accs[at * shape_.columns + i].Get(), i, rows);
    } else {
      copy(base_.accs, shape_.columns, rows.accs);
    }
    if constexpr (Fold::kAnyOrder) {
      for (size_t i = 0; i < rows.num_rows && !base_.weights.empty(); ++i) {
        const BinnedWeights weights = BinnedWeights::Of(base_.weights[at + i].Get());
        rows.weights.Append(reinterpret_cast<const std::byte*>(&weights), sizeof(weights));
      }
    }
    return rows;
  }

  absl::StatusOr<Result> Finish(SubmissionOrder order) && override {
    CombineRuns();
    ASSIGN_OR_RETURN(Input input, MakeInput(order));
    const FinishParams params = MakeFinishParams(order);
    const bool is_dense = IsDenseResult(spec_, MinRows(params, input));
    if constexpr (std::is_same_v<Fold, SumFloat>) {
      const bool is_lone = input.base == nullptr && input.updates.size() == 1;
      if (!is_dense && is_lone && input.updates[0]->unfolded != nullptr) return FinishLone(params, *input.updates[0]);
    }
    ASSIGN_OR_RETURN(const Blocks<Key> blocks, Plan(input));
    std::atomic<uint64_t> taken = 0;
    CountTaken(taken, input);
    ASSIGN_OR_RETURN(Result result,
                     is_dense ? FinishDense(params, input, blocks) : FinishSparse(params, input, blocks));
    if (input.taken != nullptr && taken != blocks.num_tuples) return KeysNotInOrder(spec_);
    result.plan = Explain(blocks);
    return result;
  }

  size_t memory_bytes() const override {
    size_t bytes = list_.memory_bytes() + base_.memory_bytes();
    for (const Rows& run : runs_) bytes += run.memory_bytes();
    return bytes;
  }

  uint64_t FoldBytes(const PreparedUpdate* next) const override {
    const uint64_t row_bytes = sizeof(Key) + shape_.columns * sizeof(typename Fold::Acc) +
                               (shape_.counts ? sizeof(uint32_t) : 0) +
                               (shape_.weights ? sizeof(typename Rows::WeightSum) : 0);
    return SaturatingAdd(SaturatingMultiply(MaxRowsWith(next), row_bytes), list_.SortBytesWith(next));
  }

  uint64_t FinishBytes(const PreparedUpdate* next) const override {
    const bool is_dense = spec_.aggregation.result_layout == ResultLayout::kDense;
    const uint64_t result_bytes = is_dense ? DenseResultBytes(spec_) : ResultBytes(spec_, MaxRowsWith(next));
    const uint64_t bytes = SaturatingAdd(result_bytes, list_.SortBytesWith(next));
    const bool combines = !runs_.empty() || (next != nullptr && next->is_partial());
    return combines ? std::max(bytes, FoldBytes(next)) : bytes;
  }

 private:
  static constexpr bool kHasBinnedAccs = std::is_class_v<typename Fold::Acc>;

  // Row sink of the base: copies rows unfinished.
  class BaseRowSink {
   public:
    BaseRowSink(const RowShape& shape, Rows& merged) : shape_(shape), merged_(merged) {}
    absl::Status Prepare(Rows& rows) {
      rows_ = &rows;
      return absl::OkStatus();
    }
    size_t size() const { return rows_->size(); }
    bool AcceptsDirectOutput() const { return shape_.columns > 0 && std::is_same_v<Fold, SumFloat>; }
    DirectOutput<Key> DirectOutputAt(uint64_t at) const {
      DirectOutput<Key> output = UnfinishedOutput(shape_, merged_, at);
      output.streams = merged_.accs.size() * sizeof(merged_.accs[0]) >= kStreamedBytes;
      return output;
    }
    void Write(uint64_t at) { CopyRows<Rows>({*rows_, 0, rows_->size()}, shape_, at, merged_); }

   private:
    const RowShape& shape_;
    Rows& merged_;
    const Rows* rows_ = nullptr;
  };

  // Counts the submissions of a partial and keeps its rows, or does neither.
  absl::Status AddPartial(const PartialUpdate& partial) {
    if constexpr (!Fold::kAnyOrder) {
      return absl::InternalError(absl::StrCat(Quoted(spec_), " has no partials"));
    } else {
      const UnfinishedRows& from = partial.rows();
      Rows rows;
      rows.resize(from.num_rows, shape_);
      const auto copy = [](const Column<std::byte>& source, auto& target) {
        if (!source.empty()) std::memcpy(target.data(), source.data(), source.size());
      };
      copy(from.keys, rows.keys);
      copy(from.counts, rows.counts);
      if constexpr (kHasBinnedAccs) {
        for (size_t i = 0; i < rows.accs.size(); ++i)
          rows.accs[i] = typename Fold::Acc(BinnedAt<typename Fold::Sum>(from, i));
      } else {
        copy(from.accs, rows.accs);
      }
      const auto* const weights = reinterpret_cast<const BinnedWeights*>(from.weights.data());
      for (size_t i = 0; i < rows.weights.size(); ++i) rows.weights[i] = BinnedWeight(weights[i].Sum());
      std::list<Rows> run;
      if (rows.size() > 0) run.push_back(std::move(rows));
      list_.AddWeights(partial.weights());
      runs_.splice(runs_.end(), run);
      has_partials_ = true;
      partials_ = Sum(partials_, partial.totals());
      return absl::OkStatus();
    }
  }

  // Combines all runs, and then the base with them. A combined run goes behind the others, so that each row is combined
  // a logarithmic number of times.
  void CombineRuns() {
    if constexpr (Fold::kAnyOrder) {
      while (runs_.size() > 1) {
        runs_.push_back(Combined(runs_.front(), *std::next(runs_.begin())));
        runs_.erase(runs_.begin(), std::next(runs_.begin(), 2));
      }
      if (runs_.empty()) return;
      base_ = base_.size() == 0 ? std::move(runs_.front()) : Combined(base_, runs_.front());
      runs_.clear();
    }
  }

  Rows Combined(const Rows& a, const Rows& b) const {
    Rows both;
    CombineRows<Fold, Rows>({a, 0, a.size()}, {b, 0, b.size()}, shape_, both);
    both.Trim();
    return both;
  }

  // Returns: a lower bound of the rows of the result.
  uint64_t MinRows(const FinishParams& params, const Input& input) const {
    if (!RowFinisher<Key, Fold>(params).IsDirect()) return 0;
    uint64_t rows = base_.size();
    for (const CpuUpdate* update : input.updates) rows = std::max(rows, update->num_keys);
    return rows;
  }

  template <typename MakeSink>
  absl::StatusOr<uint64_t> Merge(const Input& input, const Blocks<Key>& blocks, MakeSink make_sink) {
    return MergeInTurns<Key>(
        blocks.blocks.size(), arena_, [&] { return BlockMerger<Key, Fold>(input, blocks); }, make_sink);
  }

  absl::StatusOr<Result> FinishDense(const FinishParams& params, const Input& input, const Blocks<Key>& blocks) {
    Result result = MakeDense(spec_);
    RETURN_IF_ERROR(MergeAtKeys(
        blocks.blocks.size(), arena_, [&] { return BlockMerger<Key, Fold>(input, blocks); },
        [&] { return DenseRowSink<Key, Fold>(params, result); }));
    FillOutside(spec_, blocks, result);
    return result;
  }

  absl::StatusOr<Result> FinishSparse(const FinishParams& params, const Input& input, const Blocks<Key>& blocks) {
    Result result = MakeSparse(spec_, blocks.MaxRows());
    ASSIGN_OR_RETURN(const uint64_t num_rows,
                     Merge(input, blocks, [&] { return SparseRowSink<Key, Fold>(params, result); }));
    return FreeAndLayOut(num_rows, std::move(result));
  }

  // Finishes an update whose rows are not folded yet, and which is the only one.
  absl::StatusOr<Result> FinishLone(const FinishParams& params, const CpuUpdate& update) {
    Result result = MakeSparse(spec_, update.num_keys);
    ASSIGN_OR_RETURN(const uint64_t num_rows, MergeInTurns<Key>(
                                                  LoneMerger<Key>::NumBlocks(spec_, update), arena_,
                                                  [&] { return LoneMerger<Key>(spec_, shape_, update); },
                                                  [&] { return SparseRowSink<Key, Fold>(params, result); }));
    result.plan = "one update, whose rows are folded where they lie";
    return FreeAndLayOut(num_rows, std::move(result));
  }

  // Frees what is merged, cuts a sparse result to its rows, and makes it dense where the spec says so.
  Result FreeAndLayOut(uint64_t num_rows, Result result) {
    list_.ClearUpdates();
    base_ = {};
    return CutAndLayOut(spec_, num_rows, std::move(result));
  }

  uint64_t MaxRowsWith(const PreparedUpdate* next) const {
    uint64_t keys = SaturatingAdd(base_.size(), list_.KeysWith(next));
    for (const Rows& run : runs_) keys = SaturatingAdd(keys, run.size());
    return spec_.num_rows == 0 ? keys : std::min(keys, spec_.num_rows);
  }

  // Returns: the base and all pending updates, in this order if it matters.
  absl::StatusOr<Input> MakeInput(SubmissionOrder order) const {
    RETURN_IF_ERROR(CheckOrder(spec_, order, list_.weights().size()));
    Input input = MakeInput();
    if (merges_on_arrival_) return input;
    for (const uint32_t index : order.subspan(num_folded_)) {
      if (index < num_folded_) {
        return absl::InternalError(
            absl::StrCat(Quoted(spec_), ": submission ", index, " has been folded before some that precede it"));
      }
      const CpuUpdate* const update = list_.updates()[index - num_folded_].get();
      if (update != nullptr) input.Add(*update);
    }
    return input;
  }

  // Returns: the base and, if the order does not matter, all pending updates.
  Input MakeInput() const {
    Input input;
    input.spec = &spec_;
    input.shape = shape_;
    if (base_.size() > 0) input.base = &base_;
    input.base_is_first = input.base != nullptr && !merges_on_arrival_;
    if (!merges_on_arrival_) return input;
    list_.ForEach([&](const CpuUpdate& update) { input.Add(update); });
    return input;
  }

  // Lets a merge of unchecked keys count its tuples.
  static void CountTaken(std::atomic<uint64_t>& taken, Input& input) {
    const auto is_unchecked = [](const CpuUpdate* update) { return update->unchecked.has_value(); };
    if (std::any_of(input.updates.begin(), input.updates.end(), is_unchecked)) input.taken = &taken;
  }

  // Copies and checks the keys of all updates whose keys are unchecked.
  absl::Status NarrowAll() {
    size_t bytes = 0;
    std::vector<CpuUpdate*> unchecked;
    list_.ForEach([&](CpuUpdate& update) {
      if (!update.unchecked.has_value()) return;
      bytes += KeyArena::BytesFor(update.num_keys * sizeof(uint32_t));
      unchecked.push_back(&update);
    });
    if (unchecked.empty()) return absl::OkStatus();
    const auto memory = std::make_shared<KeyArena>(bytes);
    std::atomic<bool> in_order = true;
    arena_.execute([&] {
      tbb::parallel_for(size_t{0}, unchecked.size(), [&](size_t i) {
        if (!NarrowUnchecked(spec_, memory, *unchecked[i])) in_order = false;
      });
    });
    return in_order ? absl::OkStatus() : KeysNotInOrder(spec_);
  }

  // Cuts the keys into blocks. Folds pending updates that are not, and unpacks them, copies their unchecked keys or
  // sorts them completely, where the blocks need it. Errors: those of NarrowUnchecked.
  absl::StatusOr<Blocks<Key>> Plan(const Input& input) {
    list_.ForEach([this](CpuUpdate& update) { cpu::Fold(spec_, update); });
    Blocks<Key> blocks = PlanBlocks([&] { return ChooseBlocks(input); });
    const auto num_tables = std::count_if(blocks.blocks.begin(), blocks.blocks.end(),
                                          [](const Block<Key>& block) { return block.method == Method::kTable; });
    const bool has_sorts = static_cast<size_t>(num_tables) < blocks.blocks.size();
    if (has_sorts || !TableFold<Key, Fold>::HasKernel(input)) RETURN_IF_ERROR(NarrowAll());
    if (num_tables > 0 || input.base_is_first) list_.ForEach(Unpack);
    return blocks;
  }

  FinishParams MakeFinishParams(SubmissionOrder order) const {
    FinishParams params;
    params.spec = &spec_;
    params.shape = shape_;
    if (shape_.weights) {
      params.has_positive_weights = !partials_.has_zero_weight &&
                                    std::all_of(list_.weights().begin(), list_.weights().end(),
                                                [](double weight) { return weight > 0.0 || weight == kPartialWeight; });
    }
    params.total_weight = TotalWeight(spec_, list_.weights(), partials_, order);
    return params;
  }

  // Merges all pending updates into the base. `input`: the base and all of them.
  absl::Status MergeIntoBase(Input input) {
    ASSIGN_OR_RETURN(const Blocks<Key> blocks, Plan(input));
    std::atomic<uint64_t> taken = 0;
    CountTaken(taken, input);
    Rows merged;
    merged.resize(blocks.MaxRows(), shape_);
    ASSIGN_OR_RETURN(const uint64_t num_rows, Merge(input, blocks, [&] { return BaseRowSink(shape_, merged); }));
    if (input.taken != nullptr && taken != blocks.num_tuples) return KeysNotInOrder(spec_);
    merged.resize(num_rows, shape_);
    merged.Trim();
    base_ = std::move(merged);
    num_folded_ = list_.weights().size();
    list_.ClearUpdates();
    return absl::OkStatus();
  }

  const bool merges_on_arrival_ = !OrderMatters(spec_);
  Rows base_;
  std::list<Rows> runs_;  // rows of partials and of other accumulators, not combined with the base yet
  bool has_partials_ = false;
  std::atomic<bool> has_keys_ = false;  // an update with keys has been added; Prepare reads it on any thread
  size_t num_folded_ = 0;               // submissions in base_; where the order matters, they were added first
};

template <typename Fold>
std::unique_ptr<Accumulator> MakeTypedAccumulator(const TensorSpec& spec, tbb::task_arena& arena) {
  if (HasNarrowKeys(spec)) return std::make_unique<TypedAccumulator<uint32_t, Fold>>(spec, arena);
  return std::make_unique<TypedAccumulator<uint64_t, Fold>>(spec, arena);
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_TYPED_ACCUMULATOR_H_
