#include <algorithm>
#include <cstddef>
#include <cstdint>
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
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/parallel_merge.h"
#include "host/cpu/order/order_merger.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/update_list.h"
#include "host/result.h"
#include "host/unfinished_rows.h"

namespace sparseagg::cpu {
namespace {

// The state of one tensor: the updates of all submissions.
template <typename Key>
class OrderAccumulator : public ListAccumulator {
 public:
  using Input = MergeInput<Key, SumFloat>;  // any fold would do: it only gives the base its type, and there is none

  using ListAccumulator::ListAccumulator;

  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const override {
    return PrepareUpdate(spec_, update);
  }

  absl::Status Add(std::unique_ptr<PreparedUpdate> update) override {
    list_.Add(std::move(update));
    return absl::OkStatus();
  }

  absl::Status MergeFrom(Accumulator&& other) override {
    list_.MoveFrom(static_cast<OrderAccumulator&>(other).list_);
    return absl::OkStatus();
  }

  bool KeepsAll() const override { return true; }

  absl::Status FoldPending(SubmissionOrder) override { return KeepsSubmissionsError(spec_); }

  absl::StatusOr<UnfinishedRows> ExportRows(uint64_t, uint64_t, uint64_t) override {
    return KeepsSubmissionsError(spec_);
  }

  absl::StatusOr<Result> Finish(SubmissionOrder order) && override {
    RETURN_IF_ERROR(CheckOrder(spec_, order, list_.weights().size()));
    list_.ForEach(Unpack);
    Input input;
    input.spec = &spec_;
    input.shape = shape_;
    StatisticParams params(spec_);
    params.dtype = ResultDType(spec_);
    params.num_submissions = list_.weights().size();
    params.by_weight = spec_.aggregation.weighting == Weighting::kByWeight;
    for (size_t place = 0; place < order.size(); ++place) {
      const CpuUpdate* const update = list_.updates()[order[place]].get();
      if (params.by_weight) params.weights.push_back(list_.weights()[order[place]]);
      if (update == nullptr) continue;
      input.Add(*update);
      if (params.by_weight) params.position.resize(input.updates.size(), static_cast<uint32_t>(place));
    }
    // Every key would be dropped, and a dense tensor's result, nothing but fill, would look like a real one.
    if (params.by_weight && spec_.layout == Layout::kDense && !params.weights.empty() &&
        std::all_of(params.weights.begin(), params.weights.end(), [](double weight) { return weight == 0.0; })) {
      return ZeroWeightError(spec_);
    }
    if (IsSignedInteger(spec_.dtype)) {
      return IsFloat(params.dtype) ? FinishAs<int64_t, double>(input, params)
                                   : FinishAs<int64_t, int64_t>(input, params);
    }
    const bool is_wide = std::any_of(input.updates.begin(), input.updates.end(),
                                     [](const CpuUpdate* update) { return update->dtype == DType::kFloat64; });
    return is_wide ? FinishAs<double, double>(input, params) : FinishAs<float, double>(input, params);
  }

  size_t memory_bytes() const override { return list_.memory_bytes(); }
  uint64_t FoldBytes(const PreparedUpdate*) const override { return 0; }
  uint64_t FinishBytes(const PreparedUpdate* next) const override {
    const bool is_dense = spec_.aggregation.result_layout == ResultLayout::kDense;
    const uint64_t keys = list_.KeysWith(next);
    const uint64_t rows = spec_.num_rows == 0 ? keys : std::min(keys, spec_.num_rows);
    return SaturatingAdd(
        is_dense ? DenseResultBytes(spec_) : ResultBytes(spec_, rows),
        SaturatingAdd(list_.SortBytesWith(next), EntryBytes(keys, list_.updates().size() + (next == nullptr ? 0 : 1))));
  }

 private:
  // Returns: an upper bound of the memory of entries (entries.h) that grows with the input: `keys` tuples of
  // `num_updates` updates. A thread has few entries at a time, but at least all those of one key.
  uint64_t EntryBytes(uint64_t keys, uint64_t num_updates) const {
    const uint64_t entry_bytes = uint64_t{spec_.row_width} * sizeof(double) + sizeof(double) + sizeof(uint32_t);
    const auto threads = static_cast<uint64_t>(arena_.max_concurrency());
    return SaturatingMultiply(std::min(keys, SaturatingMultiply(num_updates, threads)), entry_bytes);
  }

  template <typename T, typename Out>
  absl::StatusOr<Result> FinishAs(const Input& input, const StatisticParams& params) {
    // The fold of the sinks says only what rows hold: the values themselves.
    using Fold = std::conditional_t<std::is_same_v<Out, double>, MinFloat, MinInteger>;
    FinishParams finish;
    finish.spec = &spec_;
    finish.shape = shape_;
    const Blocks<Key> blocks = PlanBlocks([&] { return ChooseBlocks(input); });
    const auto make_merger = [&] { return OrderMerger<Key, T, Out>(input, blocks, params); };
    if (spec_.aggregation.result_layout == ResultLayout::kDense) {
      Result result = MakeDense(spec_);
      RETURN_IF_ERROR(MergeAtKeys(blocks.blocks.size(), arena_, make_merger,
                                  [&] { return DenseRowSink<Key, Fold>(finish, result); }));
      FillOutside(spec_, blocks, result);
      result.plan = Explain(blocks);
      return result;
    }
    Result result = MakeSparse(spec_, blocks.MaxRows());
    ASSIGN_OR_RETURN(const uint64_t num_rows, MergeInTurns<Key>(blocks.blocks.size(), arena_, make_merger, [&] {
                       return SparseRowSink<Key, Fold>(finish, result);
                     }));
    list_.ClearUpdates();
    result.plan = Explain(blocks);
    return CutAndLayOut(spec_, num_rows, std::move(result));
  }
};

}  // namespace

std::unique_ptr<Accumulator> MakeOrderAccumulator(const TensorSpec& spec, tbb::task_arena& arena) {
  if (HasNarrowKeys(spec)) return std::make_unique<OrderAccumulator<uint32_t>>(spec, arena);
  return std::make_unique<OrderAccumulator<uint64_t>>(spec, arena);
}

}  // namespace sparseagg::cpu
