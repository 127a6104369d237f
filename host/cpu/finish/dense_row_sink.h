// Takes merged rows to the places of their keys in a dense result.
#ifndef SPARSEAGG_HOST_CPU_FINISH_DENSE_ROW_SINK_H_
#define SPARSEAGG_HOST_CPU_FINISH_DENSE_ROW_SINK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"
#include "host/cpu/finish/assemble.h"
#include "host/cpu/finish/row_finisher.h"
#include "host/cpu/merge/block_merger.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/tuning.h"
#include "host/result.h"

namespace sparseagg::cpu {

// Writes all that a dense result holds of the keys of each range: the rows, and what untouched keys hold. ByteSpans may
// come in any order, and to other takers side by side. Used by one thread.
template <typename Key, typename Fold>
class DenseRowSink {
 public:
  using Rows = FoldedRows<Key, typename Fold::Acc>;
  static constexpr bool kAtKeys = true;

  // Of MakeDense; what is not of a range is filled by somebody else.
  DenseRowSink(const FinishParams& params, Result& result)
      : finisher_(params), fill_(*params.spec), result_(result), row_bytes_(result.row_bytes()) {}

  bool TakesDirect() const { return finisher_.IsDirect(); }
  absl::StatusOr<DirectOutput<Key>> Room(uint64_t rows, const KeyRange<Key>&) {
    MakeRoom(rows);
    DirectOutput<Key> output = PlainAtFront();
    are_values_placed_ = output.columns > 1;
    if (are_values_placed_) {
      output.values = result_.values.data();
      output.at_keys = true;
      output.streams = result_.values.size() >= kStreamedBytes;
    }
    return output;
  }
  void Written(const KeyRange<Key>& range) { Put(range); }

  absl::Status Take(Rows& rows, const KeyRange<Key>& range) {
    RETURN_IF_ERROR(finisher_.Prepare(rows));
    MakeRoom(finisher_.size());
    finisher_.Write(keys_, values_, counts_, weights_, 0);
    are_values_placed_ = false;
    Put(range);
    return absl::OkStatus();
  }

  // Whether every key of a range may be written as if it were a row.
  bool TakesSlots() const { return TakesDirect() && fill_.is_zero(); }
  DirectOutput<Key> Slots(const KeyRange<Key>& range) {
    MakeRoom(0);
    DirectOutput<Key> output = PlainAtFront();
    output.values = result_.values.data() + range.first * row_bytes_;
    if (!result_.counts.empty()) output.counts = result_.counts.data() + range.first;
    if (!result_.weights.empty()) output.weights = reinterpret_cast<uint64_t*>(result_.weights.data() + range.first);
    return output;
  }
  // How many those are: blocks may end behind the last key that there can be.
  uint64_t NumSlots(const KeyRange<Key>& range) const { return End(range) - range.first; }

 private:
  static constexpr size_t kLine = 64;

  uint64_t End(const KeyRange<Key>& range) const { return std::min<uint64_t>(range.last, result_.num_rows - 1) + 1; }

  void MakeRoom(uint64_t rows) {
    keys_.resize(rows);
    values_.resize(rows * row_bytes_);
    if (!result_.counts.empty()) counts_.resize(rows);
    if (!result_.weights.empty()) weights_.resize(rows);
  }

  DirectOutput<Key> PlainAtFront() { return finisher_.DirectAt(keys_, values_, counts_, weights_, 0); }

  // Moves the rows that MakeRoom made room for.
  void Put(const KeyRange<Key>& range) {
    if (!result_.counts.empty()) {
      fill_.Counts(range.first, End(range), result_);
      for (size_t i = 0; i < keys_.size(); ++i) result_.counts[keys_[i]] = counts_[i];
    }
    if (!result_.weights.empty()) {
      fill_.Weights(range.first, End(range), result_);
      for (size_t i = 0; i < keys_.size(); ++i) result_.weights[keys_[i]] = weights_[i];
    }
    if (row_bytes_ == 0) return;
    // Short rows are written over what fills the range, which is in the cache. Of longer ones nothing is written twice.
    if (row_bytes_ >= kLine || are_values_placed_) return PutBetweenFill(range);
    fill_.Values(range.first, End(range), result_);
    switch (row_bytes_) {
      case 2:
        return Scatter<uint16_t>();
      case 4:
        return Scatter<uint32_t>();
      case 8:
        return Scatter<uint64_t>();
      default:
        for (size_t i = 0; i < keys_.size(); ++i) PutRow(i);
    }
  }

  void PutBetweenFill(const KeyRange<Key>& range) {
    uint64_t next = range.first;
    for (size_t i = 0; i < keys_.size(); ++i) {
      fill_.Values(next, keys_[i], result_);
      if (!are_values_placed_) PutRow(i);
      next = uint64_t{keys_[i]} + 1;
    }
    fill_.Values(next, End(range), result_);
  }

  void PutRow(size_t i) {
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
  // The rows of a range, one behind another.
  Column<Key> keys_;
  Column<std::byte> values_;
  Column<uint32_t> counts_;
  Column<double> weights_;
  bool are_values_placed_ = false;  // those are not here but in the result
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_FINISH_DENSE_ROW_SINK_H_
