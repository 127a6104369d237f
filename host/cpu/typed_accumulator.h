// Accumulator of the CPU engine for one type of key and one fold.
#ifndef SPARSEAGG_HOST_CPU_TYPED_ACCUMULATOR_H_
#define SPARSEAGG_HOST_CPU_TYPED_ACCUMULATOR_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/accumulation.h"
#include "host/base/reserve_more.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/cpu/finish/assemble.h"
#include "host/cpu/finish/dense_row_sink.h"
#include "host/cpu/finish/row_finisher.h"
#include "host/cpu/merge/combine_rows.h"
#include "host/cpu/merge/lone_merge.h"
#include "host/cpu/merge/parallel_merge.h"
#include "host/cpu/merge/sort_fold.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/tuning.h"
#include "host/result.h"
#include "host/spec/fixed_point.h"

namespace sparseagg::cpu {

// The state of one tensor: pending updates, and the base, the rows merged earlier. If the order of the fold matters,
// updates stay pending until FoldPending or Finish. If not, they are merged into the base as soon as they take as much
// memory as the base. So memory stays O(distinct keys), and each tuple is merged O(1) times (amortised).
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
    std::unique_ptr<CpuUpdate> cpu_update(static_cast<CpuUpdate*>(update.release()));
    ReserveOne(weights_);
    ReserveOne(updates_);
    weights_.push_back(cpu_update->weight);
    if (cpu_update->num_keys == 0) {
      updates_.push_back(nullptr);
      return absl::OkStatus();
    }
    has_keys_.store(true, std::memory_order_relaxed);
    pending_.Add(cpu_update->bytes, cpu_update->num_keys);
    sort_bytes_ = std::max(sort_bytes_, SortBytes(spec_, *cpu_update));
    updates_.push_back(std::move(cpu_update));
    return MergeIfDue();
  }

  // Where the order matters, neither must have folded any.
  absl::Status MergeFrom(Accumulator&& other) override {
    auto& from = static_cast<TypedAccumulator&>(other);
    weights_.insert(weights_.end(), from.weights_.begin(), from.weights_.end());
    for (auto& update : from.updates_) updates_.push_back(std::move(update));
    pending_.Add(from.pending_);
    if (from.has_keys_) has_keys_ = true;
    sort_bytes_ = std::max(sort_bytes_, from.sort_bytes_);
    num_folded_ += from.num_folded_;
    from.updates_.clear();
    if (base_.size() == 0) {
      base_ = std::move(from.base_);
    } else if constexpr (Fold::kAnyOrder) {
      if (from.base_.size() == 0) return MergeIfDue();
      Rows both;
      CombineRows<Fold, Rows>({base_, 0, base_.size()}, {from.base_, 0, from.base_.size()}, shape_, both);
      base_ = std::move(both);
    }
    return MergeIfDue();
  }

  bool KeepsAll() const override { return num_folded_ == 0; }

  void Remove(absl::Span<const uint32_t> indices) override {
    for (const uint32_t index : indices) {
      if (updates_[index] != nullptr) pending_.Remove(updates_[index]->bytes, updates_[index]->num_keys);
    }
    EraseAt(indices, updates_);
    EraseAt(indices, weights_);
    if (sort_bytes_ == 0) return;
    sort_bytes_ = 0;
    for (const auto& update : updates_) {
      if (update != nullptr) sort_bytes_ = std::max(sort_bytes_, SortBytes(spec_, *update));
    }
  }

  absl::Status FoldPending(SubmissionOrder order) override {
    if (merges_on_arrival_) return pending_.num_keys() == 0 ? absl::OkStatus() : MergeIntoBase(MakeInput());
    ASSIGN_OR_RETURN(const Input input, MakeInput(order));
    return updates_.empty() ? absl::OkStatus() : MergeIntoBase(input);
  }

  absl::StatusOr<Result> Finish(SubmissionOrder order) && override {
    ASSIGN_OR_RETURN(const Input input, MakeInput(order));
    const FinishParams params = MakeFinishParams(order);
    const bool is_dense = IsDenseResult(spec_, MinRows(params, input));
    if constexpr (std::is_same_v<Fold, SumFloat>) {
      const bool is_lone = input.base == nullptr && input.updates.size() == 1;
      if (!is_dense && is_lone && input.updates[0]->unfolded != nullptr) return FinishLone(params, *input.updates[0]);
    }
    const Blocks<Key> blocks = Plan(input);
    ASSIGN_OR_RETURN(Result result,
                     is_dense ? FinishDense(params, input, blocks) : FinishSparse(params, input, blocks));
    result.plan = Explain(blocks);
    return result;
  }

  uint64_t num_submissions() const override { return weights_.size(); }

  size_t memory_bytes() const override {
    return pending_.memory_bytes() + base_.memory_bytes() + weights_.capacity() * sizeof(double) +
           updates_.capacity() * sizeof(updates_[0]);
  }

  uint64_t FoldBytes(const PreparedUpdate* next) const override {
    const uint64_t row_bytes = sizeof(Key) + shape_.columns * sizeof(typename Fold::Acc) +
                               (shape_.counts ? sizeof(uint32_t) : 0) +
                               (shape_.key_weights == KeyWeights::kNone ? 0 : sizeof(double));
    return SaturatingAdd(SaturatingMultiply(MaxRowsWith(next), row_bytes), MaxSortBytesWith(next));
  }

  uint64_t FinishBytes(const PreparedUpdate* next) const override {
    const bool is_dense = spec_.aggregation.result_layout == ResultLayout::kDense;
    const uint64_t result_bytes = is_dense ? DenseResultBytes(spec_) : ResultBytes(spec_, MaxRowsWith(next));
    return SaturatingAdd(result_bytes, MaxSortBytesWith(next));
  }

 private:
  // Row sink of a sparse result: finishes rows.
  class SparseRowSink {
   public:
    SparseRowSink(const FinishParams& params, Result& result) : finisher_(params), result_(result) {}
    absl::Status Prepare(Rows& rows) { return finisher_.Prepare(rows); }
    size_t size() const { return finisher_.size(); }
    bool AcceptsDirectOutput() const { return finisher_.IsDirect(); }
    DirectOutput<Key> DirectOutputAt(uint64_t at) const {
      return finisher_.DirectOutputAt(std::get<Column<Key>>(result_.keys), result_.values, result_.counts,
                                      result_.weights, at);
    }
    void Write(uint64_t at) {
      finisher_.Write(std::get<Column<Key>>(result_.keys), result_.values, result_.counts, result_.weights, at);
    }

   private:
    RowFinisher<Key, Fold> finisher_;
    Result& result_;
  };

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
    const bool is_empty = blocks.blocks.empty();
    const uint64_t begin = is_empty ? spec_.num_rows : blocks.blocks.front().first;
    const uint64_t last = is_empty ? spec_.num_rows : blocks.blocks.back().last;
    const DenseFill fill(spec_);
    fill.Rows(0, begin, result);
    if (last < spec_.num_rows) fill.Rows(last + 1, spec_.num_rows, result);
    return result;
  }

  absl::StatusOr<Result> FinishSparse(const FinishParams& params, const Input& input, const Blocks<Key>& blocks) {
    Result result = MakeSparse(spec_, blocks.MaxRows());
    ASSIGN_OR_RETURN(const uint64_t num_rows,
                     ParallelMerge(input, blocks, arena_, [&] { return SparseRowSink(params, result); }));
    return CutAndLayOut(num_rows, std::move(result));
  }

  // Finishes an update whose rows are not folded yet, and which is the only one.
  absl::StatusOr<Result> FinishLone(const FinishParams& params, const CpuUpdate& update) {
    Result result = MakeSparse(spec_, update.num_keys);
    ASSIGN_OR_RETURN(
        const uint64_t num_rows,
        MergeInTurns<Key>(
            LoneMerger<Key>::NumBlocks(spec_, update), arena_, [&] { return LoneMerger<Key>(spec_, shape_, update); },
            [](size_t block) { return block; }, [&] { return SparseRowSink(params, result); }));
    result.plan = "one update, whose rows are folded where they lie";
    return CutAndLayOut(num_rows, std::move(result));
  }

  // Cuts a sparse result to its rows, and makes it dense where the spec says so.
  Result CutAndLayOut(uint64_t num_rows, Result result) {
    updates_.clear();
    base_ = {};
    CutSparse(spec_, num_rows, result);
    if (!IsDenseResult(spec_, num_rows)) return result;
    Result dense = MakeDense(spec_, result);
    dense.plan = std::move(result.plan);
    return dense;
  }

  uint64_t MaxRowsWith(const PreparedUpdate* next) const {
    const uint64_t next_keys = next == nullptr ? 0 : static_cast<const CpuUpdate*>(next)->num_keys;
    const uint64_t keys = SaturatingAdd(base_.size(), SaturatingAdd(pending_.num_keys(), next_keys));
    return spec_.num_rows == 0 ? keys : std::min(keys, spec_.num_rows);
  }

  uint64_t MaxSortBytesWith(const PreparedUpdate* next) const {
    if (next == nullptr) return sort_bytes_;
    return std::max(sort_bytes_, SortBytes(spec_, *static_cast<const CpuUpdate*>(next)));
  }

  // Returns: the base and all pending updates, in this order if it matters.
  absl::StatusOr<Input> MakeInput(SubmissionOrder order) const {
    RETURN_IF_ERROR(CheckOrder(spec_, order, weights_.size()));
    Input input = MakeInput();
    if (merges_on_arrival_) return input;
    for (const uint32_t index : order.subspan(num_folded_)) {
      if (index < num_folded_) {
        return absl::InternalError(
            absl::StrCat(Quoted(spec_), ": submission ", index, " has been folded before some that precede it"));
      }
      const CpuUpdate* const update = updates_[index - num_folded_].get();
      if (update != nullptr) input.updates.push_back(update);
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
    for (const auto& update : updates_) {
      if (update != nullptr) input.updates.push_back(update.get());
    }
    return input;
  }

  // Cuts the keys into blocks. Folds pending updates that are not, and unpacks or sorts them completely, where the
  // blocks need it.
  Blocks<Key> Plan(const Input& input) {
    for (const auto& update : updates_) {
      if (update != nullptr) cpu::Fold(spec_, *update);
    }
    Blocks<Key> blocks = ChooseBlocks(input);
    if (!blocks.needs_full_sort) {
      const bool all_sorted = std::all_of(blocks.blocks.begin(), blocks.blocks.end(),
                                          [](const Block<Key>& block) { return block.method == Method::kSort; });
      if (!all_sorted || input.base_is_first) {
        for (const auto& update : updates_) {
          if (update != nullptr) Unpack(*update);
        }
      }
      return blocks;
    }
    for (const auto& update : updates_) {
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
      params.has_positive_weights = std::all_of(weights_.begin(), weights_.end(), [&](double weight) {
        return fixed_weights ? FixedWeight(weight, std::ldexp(1.0, WeightShift(a))) > 0 : weight > 0.0;
      });
    }
    params.total_weight = TotalWeight(spec_, weights_, order);
    return params;
  }

  absl::Status MergeIfDue() {
    return sparseagg::MergeIfDue(spec_, pending_, base_.memory_bytes(), CurrentTuning().min_pending_bytes,
                                 [this] { return MergeIntoBase(MakeInput()); });
  }

  // Merges all pending updates into the base. `input`: the base and all of them.
  absl::Status MergeIntoBase(const Input& input) {
    const Blocks<Key> blocks = Plan(input);
    Rows merged;
    merged.resize(blocks.MaxRows(), shape_);
    ASSIGN_OR_RETURN(const uint64_t num_rows,
                     ParallelMerge(input, blocks, arena_, [&] { return BaseRowSink(shape_, merged); }));
    merged.resize(num_rows, shape_);
    merged.Trim();
    base_ = std::move(merged);
    num_folded_ = weights_.size();
    updates_.clear();
    pending_.Clear();
    sort_bytes_ = 0;
    return absl::OkStatus();
  }

  const TensorSpec spec_;
  const RowShape shape_;
  tbb::task_arena& arena_;
  const bool merges_on_arrival_ = !OrderMatters(spec_);
  // Of all submissions, or of those not merged yet, in order of Add; null: without keys.
  std::vector<std::unique_ptr<CpuUpdate>> updates_;
  std::vector<double> weights_;  // of every submission, in order of Add
  Rows base_;
  std::atomic<bool> has_keys_ = false;      // an update with keys has been added; Prepare reads it on any thread
  size_t num_folded_ = 0;                   // submissions in base_; where the order matters, they were added first
  PendingSize pending_{sizeof(CpuUpdate)};  // of updates_
  uint64_t sort_bytes_ = 0;                 // the most that sorting one of them completely takes
};

// For a tensor's key type. Instantiated for every fold in one of the sources, so that they compile side by side.
template <typename Fold>
std::unique_ptr<Accumulator> MakeTypedAccumulator(const TensorSpec& spec, tbb::task_arena& arena) {
  if (HasNarrowKeys(spec)) return std::make_unique<TypedAccumulator<uint32_t, Fold>>(spec, arena);
  return std::make_unique<TypedAccumulator<uint64_t, Fold>>(spec, arena);
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_TYPED_ACCUMULATOR_H_
