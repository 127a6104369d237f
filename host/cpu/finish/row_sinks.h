// Row sinks of sparse and dense results.
#ifndef SPARSEAGG_HOST_CPU_FINISH_ROW_SINKS_H_
#define SPARSEAGG_HOST_CPU_FINISH_ROW_SINKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"
#include "host/cpu/finish/assemble.h"
#include "host/cpu/finish/row_finisher.h"
#include "host/cpu/merge/block_merger.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/tuning.h"
#include "host/result.h"

namespace sparseagg::cpu {

// Sink (see MergeInTurns) that finishes rows and writes them one behind the other. Each thread of a merge owns one.
// Not thread-safe.
template <typename Key, typename Fold>
class SparseRowSink {
 public:
  using Rows = typename RowFinisher<Key, Fold>::Rows;

  // `result`: made by MakeSparse.
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

// Row sink (see BlockMerger::MergeBlock) that writes each row to the place of its key in a dense result, and `fill` to
// the untouched keys of the key range. Since a row's place does not depend on other rows, key ranges may come in any
// order, and the sinks of several threads may write side by side. Each thread owns one. Not thread-safe.
template <typename Key, typename Fold>
class DenseRowSink {
 public:
  using Rows = FoldedRows<Key, Fold>;
  static constexpr bool kPlacesRowsByKey = true;

  // `result`: made by MakeDense. The caller fills the keys that are in no key range.
  DenseRowSink(const FinishParams& params, Result& result)
      : finisher_(params), fill_(*params.spec), result_(result), row_bytes_(result.row_bytes()) {}

  bool AcceptsDirectOutput() const { return finisher_.IsDirect(); }
  absl::StatusOr<DirectOutput<Key>> OutputFor(uint64_t rows, const KeyRange<Key>&) {
    ResizeScratch(rows);
    DirectOutput<Key> output = ScratchOutput();
    values_are_placed_ = output.columns > 1;
    if (values_are_placed_) {
      output.values = result_.values.data();
      output.at_keys = true;
      output.streams = result_.values.size() >= kStreamedBytes;
    }
    return output;
  }
  void OutputWritten(const KeyRange<Key>& range) { PlaceRows(range); }

  absl::Status WriteRows(Rows& rows, const KeyRange<Key>& range) {
    RETURN_IF_ERROR(finisher_.Prepare(rows));
    ResizeScratch(finisher_.size());
    finisher_.Write(keys_, values_, counts_, weights_, 0);
    values_are_placed_ = false;
    PlaceRows(range);
    return absl::OkStatus();
  }

  // Returns: whether untouched keys may be written as if they were rows with sum 0.
  bool AcceptsAllSlots() const { return AcceptsDirectOutput() && fill_.is_zero(); }
  DirectOutput<Key> SlotOutput(const KeyRange<Key>& range) {
    ResizeScratch(0);
    DirectOutput<Key> output = ScratchOutput();
    output.values = result_.values.data() + range.first * row_bytes_;
    if (!result_.counts.empty()) output.counts = result_.counts.data() + range.first;
    if (!result_.weights.empty()) output.weights = result_.weights.data() + range.first;
    return output;
  }
  // Returns: the number of keys of the range that the result has. The last block may end beyond num_rows.
  uint64_t NumSlots(const KeyRange<Key>& range) const { return End(range) - range.first; }

 private:
  static constexpr size_t kLine = 64;

  uint64_t End(const KeyRange<Key>& range) const { return std::min<uint64_t>(range.last, result_.num_keys - 1) + 1; }

  void ResizeScratch(uint64_t rows) {
    keys_.resize(rows);
    values_.resize(rows * row_bytes_);
    if (!result_.counts.empty()) counts_.resize(rows);
    if (!result_.weights.empty()) weights_.resize(rows);
  }

  DirectOutput<Key> ScratchOutput() { return finisher_.DirectOutputAt(keys_, values_, counts_, weights_, 0); }

  // Moves the rows from the scratch columns to their places, and fills the places between them.
  void PlaceRows(const KeyRange<Key>& range) {
    if (!result_.counts.empty()) {
      fill_.Counts(range.first, End(range), result_);
      for (size_t i = 0; i < keys_.size(); ++i) result_.counts[keys_[i]] = counts_[i];
    }
    if (!result_.weights.empty()) {
      fill_.Weights(range.first, End(range), result_);
      for (size_t i = 0; i < keys_.size(); ++i) result_.weights[keys_[i]] = weights_[i];
    }
    if (row_bytes_ == 0) return;
    // Short rows are written over the fill, which is in the cache then. Of long rows nothing is written twice.
    if (row_bytes_ >= kLine || values_are_placed_) return PlaceRowsBetweenFill(range);
    fill_.Values(range.first, End(range), result_);
    switch (row_bytes_) {
      case 2:
        return Scatter<uint16_t>();
      case 4:
        return Scatter<uint32_t>();
      case 8:
        return Scatter<uint64_t>();
      default:
        for (size_t i = 0; i < keys_.size(); ++i) PlaceRow(i);
    }
  }

  void PlaceRowsBetweenFill(const KeyRange<Key>& range) {
    uint64_t next = range.first;
    for (size_t i = 0; i < keys_.size(); ++i) {
      fill_.Values(next, keys_[i], result_);
      if (!values_are_placed_) PlaceRow(i);
      next = uint64_t{keys_[i]} + 1;
    }
    fill_.Values(next, End(range), result_);
  }

  void PlaceRow(size_t i) {
    std::memcpy(result_.values.data() + keys_[i] * row_bytes_, values_.data() + i * row_bytes_, row_bytes_);
  }

  template <typename Word>
  void Scatter() {
    auto* const out = reinterpret_cast<Word*>(result_.values.data());
    const auto* const values = reinterpret_cast<const Word*>(values_.data());
    for (size_t i = 0; i < keys_.size(); ++i) out[keys_[i]] = values[i];
  }

  RowFinisher<Key, Fold> finisher_;
  const DenseFill fill_;
  Result& result_;
  const size_t row_bytes_;
  // Scratch: the rows of one key range, one behind another.
  Column<Key> keys_;
  Column<std::byte> values_;
  Column<uint32_t> counts_;
  Column<double> weights_;
  bool values_are_placed_ = false;  // the fold has written the values to the result, not to values_
};

// Writes the spec's `fill` to the rows before the first and after the last block; there are no gaps between blocks.
template <typename Key>
void FillOutside(const TensorSpec& spec, const Blocks<Key>& blocks, Result& result) {
  const bool is_empty = blocks.blocks.empty();
  const uint64_t begin = is_empty ? spec.num_rows : blocks.blocks.front().first;
  const uint64_t last = is_empty ? spec.num_rows : blocks.blocks.back().last;
  const DenseFill fill(spec);
  fill.Rows(0, begin, result);
  if (last < spec.num_rows) fill.Rows(last + 1, spec.num_rows, result);
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_FINISH_ROW_SINKS_H_
