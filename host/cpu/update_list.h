// The updates that an accumulator of the CPU engine holds, and what all of its accumulators do with them.
#ifndef SPARSEAGG_HOST_CPU_UPDATE_LIST_H_
#define SPARSEAGG_HOST_CPU_UPDATE_LIST_H_

#include <tbb/task_arena.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "host/accumulation.h"
#include "host/base/saturating.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/engine.h"
#include "host/spec/spec.h"
#include "host/unfinished_rows.h"

namespace sparseagg::cpu {

// The weights of all submissions, and the updates of those that are not merged yet, in order of Add. `spec` must
// outlive it. Not thread-safe.
class UpdateList {
 public:
  explicit UpdateList(const TensorSpec& spec) : spec_(spec) {}

  // Consumes `update`, a CpuUpdate, also if it throws std::bad_alloc, which changes nothing.
  // Returns: whether it has keys.
  bool Add(std::unique_ptr<PreparedUpdate> update) {
    std::unique_ptr<CpuUpdate> cpu_update(static_cast<CpuUpdate*>(update.release()));
    ReserveOne(weights_);
    ReserveOne(updates_);
    weights_.push_back(cpu_update->weight);
    if (cpu_update->num_keys == 0) {
      updates_.push_back(nullptr);
      return false;
    }
    pending_.Add(cpu_update->bytes, cpu_update->total_keys());
    growth_bytes_ += FoldedUpdateBytes(spec_, *cpu_update);
    sort_bytes_ = std::max(sort_bytes_, SortBytes(spec_, *cpu_update));
    updates_.push_back(std::move(cpu_update));
    return true;
  }

  // Counts the submissions of a partial, which have no updates.
  void AddWeights(absl::Span<const double> weights) { weights_.insert(weights_.end(), weights.begin(), weights.end()); }

  void MoveFrom(UpdateList& other) {
    weights_.insert(weights_.end(), other.weights_.begin(), other.weights_.end());
    for (auto& update : other.updates_) updates_.push_back(std::move(update));
    pending_.Add(other.pending_);
    growth_bytes_ += other.growth_bytes_;
    sort_bytes_ = std::max(sort_bytes_, other.sort_bytes_);
    other.updates_.clear();
  }

  // Requires: none is merged; indices ascend.
  void Remove(absl::Span<const uint32_t> indices) {
    for (const uint32_t index : indices) {
      if (updates_[index] == nullptr) continue;
      pending_.Remove(updates_[index]->bytes, updates_[index]->total_keys());
      growth_bytes_ -= FoldedUpdateBytes(spec_, *updates_[index]);
    }
    EraseAt(indices, updates_);
    EraseAt(indices, weights_);
    if (sort_bytes_ == 0) return;
    sort_bytes_ = 0;
    ForEach([this](const CpuUpdate& update) { sort_bytes_ = std::max(sort_bytes_, SortBytes(spec_, update)); });
  }

  // Requires: none is merged; one factor for each submission.
  void MultiplyWeights(absl::Span<const double> factors) {
    for (size_t i = 0; i < weights_.size(); ++i) {
      weights_[i] *= factors[i];
      if (updates_[i] == nullptr) continue;
      updates_[i]->weight = weights_[i];
      if (updates_[i]->repeats != nullptr) updates_[i]->repeats->weight = weights_[i];
    }
  }

  // Returns: the rows of all submissions. For kAscending sorts the updates completely first, one after the other.
  // Requires: none is merged.
  std::vector<UpdateRows> Read(RowOrder order) {
    std::vector<UpdateRows> all(updates_.size());
    for (size_t i = 0; i < updates_.size(); ++i) {
      if (updates_[i] == nullptr) continue;
      CpuUpdate& update = *updates_[i];
      const size_t bytes = update.bytes;
      const uint64_t num_keys = update.total_keys();
      const uint64_t growth = FoldedUpdateBytes(spec_, update);
      if (order == RowOrder::kAscending) {
        MakeWhole(spec_, update);
      } else {
        Fold(spec_, update);
        Unpack(update);
      }
      pending_.Remove(bytes, num_keys);
      pending_.Add(update.bytes, update.total_keys());
      growth_bytes_ -= growth - FoldedUpdateBytes(spec_, update);
      all[i] = RowsOf(update);
      if (update.repeats != nullptr) all[i].repeats = std::make_shared<const UpdateRows>(RowsOf(*update.repeats));
    }
    if (order == RowOrder::kAscending) sort_bytes_ = 0;
    return all;
  }
  // Returns: an upper bound of the memory that Read takes in addition to that of the updates, and of `next` unless that
  // is null: by what they grow, and what sorting one of them takes. Saturates.
  uint64_t ReadBytes(const PreparedUpdate* next) const {
    const bool is_read = next != nullptr && !next->is_partial();
    const uint64_t growth = is_read ? FoldedUpdateBytes(spec_, *static_cast<const CpuUpdate*>(next)) : 0;
    return SaturatingAdd(SaturatingAdd(growth_bytes_, growth), SortBytesWith(next));
  }

  // All updates are merged. The weights stay.
  void ClearUpdates() {
    updates_.clear();
    pending_.Clear();
    growth_bytes_ = sort_bytes_ = 0;
  }

  const std::vector<std::unique_ptr<CpuUpdate>>& updates() const { return updates_; }  // null: without keys
  // Calls use(update) for all updates with keys.
  template <typename Use>
  void ForEach(Use use) const {
    for (const auto& update : updates_) {
      if (update != nullptr) use(*update);
    }
  }
  const std::vector<double>& weights() const { return weights_; }
  const PendingSize& pending() const { return pending_; }
  // Returns: the most that sorting one of the updates, or `next` unless that is null, completely takes.
  uint64_t SortBytesWith(const PreparedUpdate* next) const {
    if (next == nullptr || next->is_partial()) return sort_bytes_;
    return std::max(sort_bytes_, SortBytes(spec_, *static_cast<const CpuUpdate*>(next)));
  }
  // Returns: an upper bound of the keys of the updates, and of `next` unless that is null. Saturates.
  uint64_t KeysWith(const PreparedUpdate* next) const {
    if (next == nullptr) return pending_.num_keys();
    return SaturatingAdd(pending_.num_keys(), next->is_partial()
                                                  ? static_cast<const PartialUpdate*>(next)->rows().num_rows
                                                  : static_cast<const CpuUpdate*>(next)->total_keys());
  }
  size_t memory_bytes() const {
    return pending_.memory_bytes() + weights_.capacity() * sizeof(double) + updates_.capacity() * sizeof(updates_[0]);
  }

 private:
  // Requires: the update is neither packed nor unfolded.
  static UpdateRows RowsOf(const CpuUpdate& update) {
    return {update.keys, update.num_keys, update.values, update.dtype, update.factor, update.owner, update.coarse_bits};
  }

  const TensorSpec& spec_;
  std::vector<std::unique_ptr<CpuUpdate>> updates_;
  std::vector<double> weights_;
  PendingSize pending_{sizeof(CpuUpdate)};  // of updates_
  uint64_t growth_bytes_ = 0;               // by which MakeWhole enlarges all of them
  uint64_t sort_bytes_ = 0;                 // the most that sorting one of them completely takes
};

// What the accumulators of the CPU engine have in common: the updates of one tensor, and what only concerns these.
class ListAccumulator : public Accumulator {
 public:
  ListAccumulator(const TensorSpec& spec, tbb::task_arena& arena) : spec_(spec), shape_(ShapeOf(spec)), arena_(arena) {}

  uint64_t PrepareBytes(const ValidatedUpdate& update) const override { return cpu::PrepareBytes(spec_, update); }
  void Remove(absl::Span<const uint32_t> indices) override { list_.Remove(indices); }
  void MultiplyWeights(absl::Span<const double> factors) override {
    spec_.aggregation.weighting = Weighting::kByWeight;
    shape_ = ShapeOf(spec_);
    list_.MultiplyWeights(factors);
  }
  absl::StatusOr<std::vector<UpdateRows>> ReadPending(RowOrder order) override { return list_.Read(order); }
  uint64_t ReadBytes(const PreparedUpdate* next) const override { return list_.ReadBytes(next); }
  PartialTotals Totals() const override { return TotalsOf(spec_, list_.weights(), partials_); }
  uint64_t num_submissions() const override { return list_.weights().size(); }

 protected:
  // Cuts the keys into blocks, and sorts updates in coarse order completely where these need it. choose(): the blocks.
  template <typename Choose>
  auto PlanBlocks(Choose choose) {
    auto blocks = choose();
    if (!blocks.needs_full_sort) return blocks;
    list_.ForEach([this](CpuUpdate& update) {
      if (update.coarse_bits > 0) SortCompletely(spec_, update);
    });
    return choose();
  }

  TensorSpec spec_;  // only MultiplyWeights changes it and shape_
  RowShape shape_;
  tbb::task_arena& arena_;
  UpdateList list_{spec_};
  PartialTotals partials_;  // of the submissions that count as kPartialWeight
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_UPDATE_LIST_H_
