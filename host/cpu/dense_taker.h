// Takes merged rows to the places of their keys in a dense result.
#ifndef SPARSEAGG_HOST_CPU_DENSE_TAKER_H_
#define SPARSEAGG_HOST_CPU_DENSE_TAKER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/column.h"
#include "host/cpu/assemble.h"
#include "host/cpu/block_merger.h"
#include "host/cpu/finish.h"
#include "host/cpu/folded_rows.h"
#include "host/cpu/plain_output.h"
#include "host/cpu/tuning.h"
#include "host/result.h"
#include "host/status_macros.h"

namespace sparseagg::cpu {

// Writes all that a dense result holds of the keys of each piece: the rows, and what untouched keys hold. Pieces may
// come in any order, and to other takers side by side. Used by one thread.
template <typename Key, typename Fold>
class DenseTaker {
 public:
  using Rows = FoldedRows<Key, typename Fold::Acc>;
  static constexpr bool kAtKeys = true;

  // Of MakeDense; what is not of a piece is filled by somebody else.
  DenseTaker(const FinishParams& params, Result& result)
      : finisher_(params), fill_(*params.spec), result_(result), row_bytes_(result.row_bytes()) {}

  bool TakesPlain() const { return finisher_.IsPlain(); }
  absl::StatusOr<PlainOutput<Key>> Room(uint64_t rows, const Piece<Key>&) {
    MakeRoom(rows);
    PlainOutput<Key> output = PlainAtFront();
    are_values_placed_ = output.columns > 1;
    if (are_values_placed_) {
      output.values = result_.values.data();
      output.at_keys = true;
      output.streams = result_.values.size() >= kStreamedBytes;
    }
    return output;
  }
  void Written(const Piece<Key>& piece) { Put(piece); }

  absl::Status Take(Rows& rows, const Piece<Key>& piece) {
    RETURN_IF_ERROR(finisher_.Prepare(rows));
    MakeRoom(finisher_.size());
    finisher_.Write(keys_, values_, counts_, weights_, 0);
    are_values_placed_ = false;
    Put(piece);
    return absl::OkStatus();
  }

  // Whether every key of a piece may be written as if it were a row.
  bool TakesSlots() const { return TakesPlain() && fill_.is_zero(); }
  PlainOutput<Key> Slots(const Piece<Key>& piece) {
    MakeRoom(0);
    PlainOutput<Key> output = PlainAtFront();
    output.values = result_.values.data() + piece.first * row_bytes_;
    if (!result_.counts.empty()) output.counts = result_.counts.data() + piece.first;
    if (!result_.weights.empty()) output.weights = reinterpret_cast<uint64_t*>(result_.weights.data() + piece.first);
    return output;
  }
  // How many those are: blocks may end behind the last key that there can be.
  uint64_t NumSlots(const Piece<Key>& piece) const { return End(piece) - piece.first; }

 private:
  static constexpr size_t kLine = 64;

  uint64_t End(const Piece<Key>& piece) const { return std::min<uint64_t>(piece.last, result_.num_rows - 1) + 1; }

  void MakeRoom(uint64_t rows) {
    keys_.resize(rows);
    values_.resize(rows * row_bytes_);
    if (!result_.counts.empty()) counts_.resize(rows);
    if (!result_.weights.empty()) weights_.resize(rows);
  }

  PlainOutput<Key> PlainAtFront() { return finisher_.PlainAt(keys_, values_, counts_, weights_, 0); }

  // Moves the rows that MakeRoom made room for.
  void Put(const Piece<Key>& piece) {
    if (!result_.counts.empty()) {
      fill_.Counts(piece.first, End(piece), result_);
      for (size_t i = 0; i < keys_.size(); ++i) result_.counts[keys_[i]] = counts_[i];
    }
    if (!result_.weights.empty()) {
      fill_.Weights(piece.first, End(piece), result_);
      for (size_t i = 0; i < keys_.size(); ++i) result_.weights[keys_[i]] = weights_[i];
    }
    if (row_bytes_ == 0) return;
    // Short rows are written over what fills the piece, which is in the cache. Of longer ones nothing is written twice.
    if (row_bytes_ >= kLine || are_values_placed_) return PutBetweenFill(piece);
    fill_.Values(piece.first, End(piece), result_);
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

  void PutBetweenFill(const Piece<Key>& piece) {
    uint64_t next = piece.first;
    for (size_t i = 0; i < keys_.size(); ++i) {
      fill_.Values(next, keys_[i], result_);
      if (!are_values_placed_) PutRow(i);
      next = uint64_t{keys_[i]} + 1;
    }
    fill_.Values(next, End(piece), result_);
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
  // The rows of a piece, one behind another.
  Column<Key> keys_;
  Column<std::byte> values_;
  Column<uint32_t> counts_;
  Column<double> weights_;
  bool are_values_placed_ = false;  // those are not here but in the result
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_DENSE_TAKER_H_
