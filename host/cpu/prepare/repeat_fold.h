// Fold of the rows of an update's repeated keys, read where they lie.
#ifndef SPARSEAGG_HOST_CPU_PREPARE_REPEAT_FOLD_H_
#define SPARSEAGG_HOST_CPU_PREPARE_REPEAT_FOLD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "host/base/column.h"
#include "host/cpu/prepare/sorted_tuples.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/simd/kernels.h"

namespace sparseagg::cpu {

// Folder of the float rows of one update, one range of its sorted tuples after another: the rows of a key are added in
// the order of occurrence, starting from +0.0, and the sum is multiplied by the update's factor and weight. Rows are
// not moved.
//
//   RepeatFold<Key> fold(tuples, rows, weight);
//   fold.Collect(begin, end);                    // whole keys
//   fold.WriteTo(output);                        // one row for each of the fold.num_keys() keys
//
// Borrows `tuples` and the rows. Not thread-safe.
template <typename Key>
class RepeatFold {
 public:
  // `rows`: of the update, float values. `scale`: of the update; its default: rows are only added.
  RepeatFold(const SortedTuples<Key>& tuples, RowSource rows, ValueScale scale)
      : tuples_(tuples), rows_(rows), scale_(scale) {
    rows_.scale = {};  // rows are multiplied after their fold
  }

  // Requires: tuples [begin, end), of 2^32 − 1 at most, are all tuples of their keys.
  void Collect(size_t begin, size_t end) {
    const size_t n = end - begin;
    keys_.resize(n);
    ends_.resize(n);
    if (const size_t had = order_.size(); had < n) {
      order_.resize(n);
      std::iota(order_.begin() + had, order_.end(), static_cast<uint32_t>(had));
      origins_.resize(n);
    }
    num_keys_ = tuples_.With([&](const auto& tuples) {
      size_t row = 0;
      for (size_t i = 0; i < n; ++i) {
        const Key key = tuples.key(begin + i);
        origins_[i] = {0, tuples.position(begin + i)};
        keys_[row] = key;
        ends_[row] = static_cast<uint32_t>(i + 1);
        row += i + 1 == n || tuples.key(begin + i + 1) != key ? 1 : 0;
      }
      return row;
    });
  }

  // Returns: the distinct keys that were collected.
  size_t num_keys() const { return num_keys_; }

  // Folds, finishes and writes the rows that were collected, each with one contributor.
  void WriteTo(const DirectOutput<Key>& output) const {
    std::copy_n(keys_.data(), num_keys_, output.keys);
    if (output.counts != nullptr) std::fill_n(output.counts, num_keys_, uint32_t{1});
    if (output.weights != nullptr) std::fill_n(output.weights, num_keys_, scale_.weight);
    DirectValues values = output;
    if (output.divided_by == DividedBy::kCount) values.divided_by = DividedBy::kNothing;
    if (output.divided_by == DividedBy::kWeight) {
      values.divided_by = DividedBy::kTotal;
      values.total = scale_.weight;
    }
    CollectedRows rows;
    rows.sources = &rows_;
    rows.origins = origins_.data();
    rows.order = order_.data();
    rows.ends = ends_.data();
    rows.num_keys = num_keys_;
    rows.folded = scale_;
    FoldRowsTo(rows, values);
  }

 private:
  const SortedTuples<Key>& tuples_;
  RowSource rows_;
  const ValueScale scale_;
  size_t num_keys_ = 0;
  Column<Key> keys_;
  Column<uint32_t> ends_;
  Column<uint32_t> order_;  // 0, 1, …: tuples are sorted already
  Column<RowOrigin> origins_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_REPEAT_FOLD_H_
