// Sums of rows of several values, for the sort fold.
#ifndef SPARSEAGG_HOST_CPU_MERGE_ROW_SUMS_H_
#define SPARSEAGG_HOST_CPU_MERGE_ROW_SUMS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "host/base/column.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/merge/tuple_sort.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/simd/kernels.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// Sums of a block's rows. Rows of several values are too large to move while their keys are sorted. They stay where
// they are, in the updates and in the base, and are found by their origin when they are summed. Owned by a SortFold:
//
//   row_sums.Group(sorted, origins);           // for each block: which rows belong to which key
//   row_sums.WriteTo(output);                  // finished; or MoveTo(rows), unfinished
//
// Not thread-safe.
template <typename Key, typename Fold>
class RowSums {
 public:
  using Rows = FoldedRows<Key, Fold>;

  // Returns: whether this class serves the fold and shape: float64 sums of rows of several values.
  static constexpr bool IsFor(const RowShape& shape) { return std::is_same_v<Fold, SumFloat> && shape.columns > 1; }

  // `base`: rows merged earlier that are summed with the updates'; may be null.
  RowSums(const Sources<Key, Fold>& sources, const Rows* base, const RowShape& shape)
      : sources_(sources), base_(base), shape_(shape) {
    for (const Cursor<Key>& cursor : sources.cursors) {
      row_sources_.push_back({cursor.values, cursor.end * shape.columns, cursor.scale, cursor.dtype, false});
      all_float32_ = all_float32_ && cursor.dtype == DType::kFloat32;
    }
    if (base == nullptr) return;
    all_float32_ = false;
    RowSource folded;
    folded.values = reinterpret_cast<const std::byte*>(base->accs.data());
    folded.num_values = base->accs.size();
    folded.dtype = DType::kFloat64;
    folded.is_folded = true;
    row_sources_.push_back(folded);
  }

  // Groups a block's sorted tuples by key. Payloads are indexes of `origins`. The source of an origin is the index of
  // an update, or BaseIndex(). `origins` must stay until the sums are written.
  //
  // Not inlined: inlined into SortFold::Collect, it changes how the compiler treats the loops of other merges, for the
  // worse.
  [[gnu::noinline]] void Group(const TupleSort<Key>& sorted, const RowOrigin* origins) {
    const Column<TupleWord>& entries = sorted.words();
    const size_t n = entries.size();
    keys_.resize(n);
    ends_.resize(n);
    order_.resize(n);
    origins_ = origins;
    size_t row = 0;
    for (size_t i = 0; i < n; ++i) {
      const TupleWord entry = entries[i];
      order_[i] = entry.payload();
      keys_[row] = sorted.KeyOf(entry);
      ends_[row] = static_cast<uint32_t>(i + 1);
      row += i + 1 == n || entries[i + 1].offset() != entry.offset() ? 1 : 0;
    }
    keys_.resize(row);
    ends_.resize(row);
  }

  size_t num_rows() const { return keys_.size(); }  // the block's distinct keys

  // Folds and finishes the rows of the keys that Group found, and writes them.
  void WriteTo(const DirectOutput<Key>& output) {
    std::copy_n(keys_.data(), num_rows(), output.keys);
    uint32_t* const counts = ColumnOf(output.counts, output.divided_by == DividedBy::kCount, counts_);
    if (counts != nullptr) {
      std::fill_n(counts, num_rows(), 0);
      ForRows([&](size_t row, const RowOrigin& origin) {
        counts[row] += IsOfBase(origin) ? base_->counts[origin.row] : 1;
      });
    }
    double* const weights = ColumnOf(output.weights, output.divided_by == DividedBy::kWeight, weights_);
    if constexpr (std::is_same_v<Fold, SumFloat>) {  // IsFor is false of others
      if (weights != nullptr) {
        std::fill_n(weights, num_rows(), 0.0);
        ForRows([&](size_t row, const RowOrigin& origin) {
          weights[row] += IsOfBase(origin) ? base_->weights[origin.row] : sources_.sources[origin.source].key_weight;
        });
      }
    }
    CollectedRows rows;
    if (output.divided_by == DividedBy::kCount || output.divided_by == DividedBy::kWeight) {
      divisors_.resize(num_rows());
      for (size_t row = 0; row < num_rows(); ++row) {
        divisors_[row] = output.divided_by == DividedBy::kCount ? counts[row] : weights[row];
      }
      rows.divisors = divisors_.data();
    }
    if (output.at_keys) {
      places_.resize(num_rows());
      std::copy_n(keys_.data(), num_rows(), places_.data());
      rows.places = places_.data();
    }
    rows.sources = row_sources_.data();
    rows.origins = origins_;
    rows.order = order_.data();
    rows.ends = ends_.data();
    rows.num_keys = num_rows();
    rows.all_float32 = all_float32_;
    FoldRowsTo(rows, output);
  }

  // Moves the unfinished sums to `rows`.
  void MoveTo(Rows& rows) {
    rows.resize(0, shape_);
    rows.resize(num_rows(), shape_);
    WriteTo(UnfinishedOutput(shape_, rows));
  }

 private:
  bool IsOfBase(const RowOrigin& origin) const { return origin.source == sources_.BaseIndex(); }

  // Returns: where to write a column of counts or weights: the output's column; `scratch` if rows are only divided by
  // it; null if it is not needed.
  template <typename T>
  T* ColumnOf(T* out, bool divides, Column<T>& scratch) const {
    if (out != nullptr || !divides) return out;
    scratch.resize(num_rows());
    return scratch.data();
  }

  // Calls step(row, origin) for every source row, in the order of the sum. `row`: index of the key.
  template <typename Step>
  void ForRows(Step step) const {
    size_t i = 0;
    for (size_t row = 0; row < num_rows(); ++row) {
      for (; i < ends_[row]; ++i) step(row, origins_[order_[i]]);
    }
  }

  const Sources<Key, Fold>& sources_;
  const Rows* const base_;
  const RowShape shape_;
  std::vector<RowSource> row_sources_;  // the updates, then the base
  bool all_float32_ = true;             // and there is no base
  // The current block: keys, and the members of CollectedRows.
  const RowOrigin* origins_ = nullptr;
  Column<Key> keys_;
  Column<uint32_t> ends_;
  Column<uint32_t> order_;
  Column<double> divisors_;
  Column<uint64_t> places_;
  // Scratch columns of ColumnOf.
  Column<uint32_t> counts_;
  Column<double> weights_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_ROW_SUMS_H_
