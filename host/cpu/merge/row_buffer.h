// Finished rows on their way to the result.
#ifndef SPARSEAGG_HOST_CPU_MERGE_ROW_BUFFER_H_
#define SPARSEAGG_HOST_CPU_MERGE_ROW_BUFFER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "host/base/column.h"
#include "host/cpu/rows/direct_output.h"

namespace sparseagg::cpu {

// Holds a block's rows while their place is not known yet, so that their thread need not wait for it. They stay in the
// cache, and go to memory once, when their turn has come. Used by one thread.
template <typename Key>
class RowBuffer {
 public:
  size_t rows() const { return rows_; }

  // Where the next `rows` rows go; `like` tells what is written of each, and has counts or weights or not from one
  // MoveTo to the next.
  DirectOutput<Key> Room(size_t rows, const DirectOutput<Key>& like) {
    const size_t row_bytes = like.row_bytes();
    DirectOutput<Key> room = like;
    keys_.resize(rows_ + rows);
    values_.resize((rows_ + rows) * row_bytes);
    room.keys = keys_.data() + rows_;
    room.values = values_.data() + rows_ * row_bytes;
    if (like.counts != nullptr) {
      counts_.resize(rows_ + rows);
      room.counts = counts_.data() + rows_;
    }
    if (like.weights != nullptr) {
      weights_.resize(rows_ + rows);
      room.weights = weights_.data() + rows_;
    }
    rows_ += rows;
    return room;
  }

  // Moves all rows to `output`; returns the place behind them.
  DirectOutput<Key> MoveTo(DirectOutput<Key> output) {
    std::copy_n(keys_.data(), rows_, output.keys);
    std::copy_n(values_.data(), values_.size(), output.values);
    output.keys += rows_;
    output.values += values_.size();
    if (output.counts != nullptr) {
      std::copy_n(counts_.data(), rows_, output.counts);
      output.counts += rows_;
    }
    if (output.weights != nullptr) {
      std::copy_n(weights_.data(), rows_, output.weights);
      output.weights += rows_;
    }
    rows_ = 0;
    keys_.clear();
    values_.clear();
    counts_.clear();
    weights_.clear();
    return output;
  }

 private:
  size_t rows_ = 0;
  Column<Key> keys_;
  Column<std::byte> values_;
  Column<uint32_t> counts_;
  Column<uint64_t> weights_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_ROW_BUFFER_H_
