// Buffer of finished rows whose place in the result is not known yet.
#ifndef SPARSEAGG_HOST_CPU_MERGE_ROW_BUFFER_H_
#define SPARSEAGG_HOST_CPU_MERGE_ROW_BUFFER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "host/base/column.h"
#include "host/cpu/rows/direct_output.h"

namespace sparseagg::cpu {

// Rows of one block, finished before the block's turn has come (see OrderedBlockQueue), so that the thread can go on
// folding. The buffer is small and stays in the cache. Each thread of a merge owns one. Life cycle, block after block:
// OutputFor (write rows there), OutputFor, …, MoveTo. Not thread-safe.
template <typename Key>
class RowBuffer {
 public:
  size_t rows() const { return rows_; }

  // Returns: the direct output, inside this buffer, for the next `rows` rows. `like`: an output of the result; its
  // columns and conversions are taken over, and must be the same until MoveTo.
  DirectOutput<Key> OutputFor(size_t rows, const DirectOutput<Key>& like) {
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

  // Moves all rows to `output`.
  // Returns: the output that begins behind them.
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
