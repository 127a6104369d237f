// Accumulator of the CPU engine for one type of key and one fold.
#ifndef SPARSEAGG_HOST_CPU_TYPED_ACCUMULATOR_H_
#define SPARSEAGG_HOST_CPU_TYPED_ACCUMULATOR_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/accumulation.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
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

// The state of one tensor: pending updates, and the base, the rows merged earlier. If the order of the fold matters,
// updates stay pending until FoldPending or Finish. If not, they are merged into the base as soon as they take as much
// memory as the base. So memory stays O(distinct keys), and each tuple is merged O(1) times (amortised). Rows of
// partials are kept as runs beside the base.
//
//   auto accumulator = MakeTypedAccumulator<SumFloat>(spec, arena);
//   RETURN_IF_ERROR(accumulator->Add(*accumulator->Prepare(std::move(update))));   // for each submission
//   ASSIGN_OR_RETURN(Result result, std::move(*accumulator).Finish(order));
template <typename Key, typename Fold>
class TypedAccumulator : public Accumulator {
 public:
  using Rows = FoldedRows<Key, typename Fold::Acc>;
  using Input = MergeInput<Key, Fold>;

  TypedAccumulator(const TensorSpec& spec, tbb::task_arena& arena)
      : spec_(spec), shape_{NumColumns(spec), NeedsCounts(spec), KeyWeightsOf(spec)}, arena_(arena) {}

  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const override {
    // Only the rows of a lone update may stay unfolded: others are folded here, beside other updates.
    return PrepareUpdate(spec_, update, std::is_same_v<Fold, SumFloat> && !has_keys_.load(std::memory_order_relaxed));
  }

  uint64_t PrepareBytes(const ValidatedUpdate& update) const override { return cpu::PrepareBytes(spec_, update); }

  absl::Status Add(std::unique_ptr<PreparedUpdate> update) override {
    if (update->is_partial()) return AddPartial(static_cast<const PartialUpdate&>(*update));
    if (!list_.Add(std::move(update))) return absl::OkStatus();
    has_keys_.store(true, std::memory_order_relaxed);
    return MergeIfDue();
  }

  void DeferMerges() override { defers_merges_ = true; }

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
    for (Rows& run : from.runs_) runs_.push_back(std::move(run));
    from.runs_.clear();
    CombineSmallRuns();
    return MergeIfDue();
  }

  bool KeepsAll() const override { return num_folded_ == 0 && !has_partials_; }

  void Remove(absl::Span<const uint32_t> indices) override { list_.Remove(indices); }

  void MultiplyWeights(absl::Span<const double> factors) override {
    spec_.aggregation.weighting = Weighting::kByWeight;
    shape_ = {NumColumns(spec_), NeedsCounts(spec_), KeyWeightsOf(spec_)};
    list_.MultiplyWeights(factors);
  }

  absl::StatusOr<std::vector<UpdateRows>> ReadPending(RowOrder order) override { return list_.Read(order); }
  uint64_t ReadBytes(const PreparedUpdate* next) const override { return list_.ReadBytes(next); }

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
    copy(base_.accs, shape_.columns, rows.accs);
    copy(base_.counts, 1, rows.counts);
    copy(base_.weights, 1, rows.weights);
    return rows;
  }

  PartialTotals Totals() const override { return TotalsOf(spec_, list_.weights(), partials_); }

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

  uint64_t num_submissions() const override { return list_.weights().size(); }

  size_t memory_bytes() const override {
    size_t bytes = list_.memory_bytes() + base_.memory_bytes();
    for (const Rows& run : runs_) bytes += run.memory_bytes();
    return bytes;
  }

  uint64_t FoldBytes(const PreparedUpdate* next) const override {
    const uint64_t row_bytes = sizeof(Key) + shape_.columns * sizeof(typename Fold::Acc) +
                               (shape_.counts ? sizeof(uint32_t) : 0) +
                               (shape_.key_weights == KeyWeights::kNone ? 0 : sizeof(double));
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
  // Row sink of the base: copies rows unfinished.
  class BaseRowSink {
   public:
    BaseRowSink(const RowShape& shape, Rows& merged) : shape_(shape), merged_(merged) {}
    absl::Status Prepare(Rows& rows) {
      rows_ = &rows;
      return absl::OkStatus();
    }
    size_t size() const { return rows_->size(); }
    bool AcceptsDirectOutput() const {
      return shape_.columns > 0 && (std::is_same_v<Fold, SumFloat> || std::is_same_v<Fold, SumFixed>);
    }
    DirectOutput<Key> DirectOutputAt(uint64_t at) const {
      DirectOutput<Key> output;
      output.keys = merged_.keys.data() + at;
      output.columns = shape_.columns;
      output.values = reinterpret_cast<std::byte*>(merged_.accs.data() + at * shape_.columns);
      if (shape_.counts) output.counts = merged_.counts.data() + at;
      if (shape_.key_weights != KeyWeights::kNone) output.weights = merged_.weights.data() + at;
      output.streams = merged_.accs.size() * sizeof(merged_.accs[0]) >= kStreamedBytes;
      output.dtype = std::is_same_v<Fold, SumFixed> ? DType::kInt64 : DType::kFloat64;
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
      copy(from.accs, rows.accs);
      copy(from.counts, rows.counts);
      copy(from.weights, rows.weights);
      runs_.reserve(runs_.size() + 1);
      list_.AddWeights(partial.weights());
      has_partials_ = true;
      partials_ = Sum(partials_, partial.totals());
      if (rows.size() > 0) runs_.push_back(std::move(rows));
      try {
        CombineSmallRuns();
      } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
        // What was added counts; the next call combines them.
      }
      return absl::OkStatus();
    }
  }

  // Combines runs until each has more than twice the rows of the one after it. So each row is combined a logarithmic
  // number of times, however many runs there are.
  void CombineSmallRuns() {
    while (runs_.size() > 1 && runs_[runs_.size() - 2].size() <= 2 * runs_.back().size()) {
      CombineLastRun(runs_[runs_.size() - 2]);
    }
  }

  // Combines all runs into the base.
  void CombineRuns() {
    while (!runs_.empty()) CombineLastRun(runs_.size() > 1 ? runs_[runs_.size() - 2] : base_);
  }

  void CombineLastRun(Rows& into) {
    if constexpr (Fold::kAnyOrder) {
      Rows& last = runs_.back();
      if (into.size() == 0) {
        into = std::move(last);
      } else {
        Rows both;
        CombineRows<Fold, Rows>({into, 0, into.size()}, {last, 0, last.size()}, shape_, both);
        both.Trim();
        into = std::move(both);
      }
      runs_.pop_back();
    }
  }

  // Returns: a lower bound of the rows of the result.
  uint64_t MinRows(const FinishParams& params, const Input& input) const {
    if (!RowFinisher<Key, Fold>(params).IsDirect()) return 0;
    uint64_t rows = base_.size();
    for (const CpuUpdate* update : input.updates) rows = std::max(rows, update->num_keys);
    return rows;
  }

  absl::StatusOr<Result> FinishDense(const FinishParams& params, const Input& input, const Blocks<Key>& blocks) {
    Result result = MakeDense(spec_);
    RETURN_IF_ERROR(
        ParallelMergeAtKeys(input, blocks, arena_, [&] { return DenseRowSink<Key, Fold>(params, result); }));
    FillOutside(spec_, blocks, result);
    return result;
  }

  absl::StatusOr<Result> FinishSparse(const FinishParams& params, const Input& input, const Blocks<Key>& blocks) {
    Result result = MakeSparse(spec_, blocks.MaxRows());
    ASSIGN_OR_RETURN(const uint64_t num_rows,
                     ParallelMerge(input, blocks, arena_, [&] { return SparseRowSink<Key, Fold>(params, result); }));
    return FreeAndLayOut(num_rows, std::move(result));
  }

  // Finishes an update whose rows are not folded yet, and which is the only one.
  absl::StatusOr<Result> FinishLone(const FinishParams& params, const CpuUpdate& update) {
    Result result = MakeSparse(spec_, update.num_keys);
    ASSIGN_OR_RETURN(
        const uint64_t num_rows,
        MergeInTurns<Key>(
            LoneMerger<Key>::NumBlocks(spec_, update), arena_, [&] { return LoneMerger<Key>(spec_, shape_, update); },
            [](size_t block) { return block; }, [&] { return SparseRowSink<Key, Fold>(params, result); }));
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
    if (shape_.key_weights == KeyWeights::kFixed) input.weight_scale = std::ldexp(1.0, WeightShift(spec_.aggregation));
    if (base_.size() > 0) input.base = &base_;
    input.base_is_first = input.base != nullptr && !merges_on_arrival_;
    if (!merges_on_arrival_) return input;
    for (const auto& update : list_.updates()) {
      if (update != nullptr) input.Add(*update);
    }
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
    for (const auto& update : list_.updates()) {
      if (update != nullptr && update->unchecked.has_value()) {
        bytes += KeyArena::BytesFor(update->num_keys * sizeof(uint32_t));
      }
    }
    if (bytes == 0) return absl::OkStatus();
    const auto arena = std::make_shared<KeyArena>(bytes);
    for (const auto& update : list_.updates()) {
      if (update != nullptr) RETURN_IF_ERROR(NarrowUnchecked(spec_, arena, *update));
    }
    return absl::OkStatus();
  }

  // Cuts the keys into blocks. Folds pending updates that are not, and unpacks them, copies their unchecked keys or
  // sorts them completely, where the blocks need it. Errors: those of NarrowUnchecked.
  absl::StatusOr<Blocks<Key>> Plan(const Input& input) {
    for (const auto& update : list_.updates()) {
      if (update != nullptr) cpu::Fold(spec_, *update);
    }
    Blocks<Key> blocks = ChooseBlocks(input);
    const auto is_table = [](const Block<Key>& block) { return block.method == Method::kTable; };
    if (!TableFold<Key, Fold>::HasKernel(input) || !std::all_of(blocks.blocks.begin(), blocks.blocks.end(), is_table)) {
      RETURN_IF_ERROR(NarrowAll());
    }
    if (!blocks.needs_full_sort) {
      const bool all_sorted = std::all_of(blocks.blocks.begin(), blocks.blocks.end(),
                                          [](const Block<Key>& block) { return block.method == Method::kSort; });
      if (!all_sorted || input.base_is_first) {
        for (const auto& update : list_.updates()) {
          if (update != nullptr) Unpack(*update);
        }
      }
      return blocks;
    }
    for (const auto& update : list_.updates()) {
      if (update != nullptr && update->coarse_bits > 0) SortCompletely(spec_, *update);
    }
    return ChooseBlocks(input);
  }

  FinishParams MakeFinishParams(SubmissionOrder order) const {
    const AggregationSpec& a = spec_.aggregation;
    FinishParams params;
    params.spec = &spec_;
    params.shape = shape_;
    if (UsesFixedPoint(spec_)) params.value_unit = std::ldexp(1.0, -ValueShift(a));
    const bool fixed_weights = a.numerics == Numerics::kFixedPoint && a.weighting == Weighting::kByWeight &&
                               (a.op == Op::kMean || shape_.key_weights == KeyWeights::kFixed);
    if (fixed_weights) params.weight_unit = std::ldexp(1.0, -WeightShift(a));
    if (shape_.key_weights != KeyWeights::kNone) {
      params.has_positive_weights =
          !partials_.has_zero_weight && std::all_of(list_.weights().begin(), list_.weights().end(), [&](double weight) {
            if (weight == kPartialWeight) return true;
            return fixed_weights ? FixedWeight(weight, std::ldexp(1.0, WeightShift(a))) > 0 : weight > 0.0;
          });
    }
    params.total_weight = TotalWeight(spec_, list_.weights(), partials_, order);
    return params;
  }

  absl::Status MergeIfDue() {
    if (defers_merges_) return absl::OkStatus();
    return sparseagg::MergeIfDue(spec_, list_.pending(), base_.memory_bytes(), CurrentTuning().min_pending_bytes,
                                 [this] { return FoldPending({}); });
  }

  // Merges all pending updates into the base. `input`: the base and all of them.
  absl::Status MergeIntoBase(Input input) {
    ASSIGN_OR_RETURN(const Blocks<Key> blocks, Plan(input));
    std::atomic<uint64_t> taken = 0;
    CountTaken(taken, input);
    Rows merged;
    merged.resize(blocks.MaxRows(), shape_);
    ASSIGN_OR_RETURN(const uint64_t num_rows,
                     ParallelMerge(input, blocks, arena_, [&] { return BaseRowSink(shape_, merged); }));
    if (input.taken != nullptr && taken != blocks.num_tuples) return KeysNotInOrder(spec_);
    merged.resize(num_rows, shape_);
    merged.Trim();
    base_ = std::move(merged);
    num_folded_ = list_.weights().size();
    list_.ClearUpdates();
    return absl::OkStatus();
  }

  TensorSpec spec_;  // only MultiplyWeights changes it
  RowShape shape_;
  tbb::task_arena& arena_;
  const bool merges_on_arrival_ = !OrderMatters(spec_);
  bool defers_merges_ = false;
  UpdateList list_{spec_};
  Rows base_;
  std::vector<Rows> runs_;  // rows of partials and of other accumulators, not combined with the base yet
  bool has_partials_ = false;
  PartialTotals partials_;              // of the submissions that count as kPartialWeight
  std::atomic<bool> has_keys_ = false;  // an update with keys has been added; Prepare reads it on any thread
  size_t num_folded_ = 0;               // submissions in base_; where the order matters, they were added first
};

// For a tensor's key type. Instantiated for every fold in one of the sources, so that they compile side by side.
template <typename Fold>
std::unique_ptr<Accumulator> MakeTypedAccumulator(const TensorSpec& spec, tbb::task_arena& arena) {
  if (HasNarrowKeys(spec)) return std::make_unique<TypedAccumulator<uint32_t, Fold>>(spec, arena);
  return std::make_unique<TypedAccumulator<uint64_t, Fold>>(spec, arena);
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_TYPED_ACCUMULATOR_H_
