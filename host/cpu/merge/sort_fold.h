// Sort fold: folds a block of keys by collecting, sorting and adding up its tuples.
#ifndef SPARSEAGG_HOST_CPU_MERGE_SORT_FOLD_H_
#define SPARSEAGG_HOST_CPU_MERGE_SORT_FOLD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "host/base/column.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/row_sums.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/merge/tuple_collector.h"
#include "host/cpu/merge/tuple_sort.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/simd/kernels.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// Fold of one block at a time whose cost grows with its tuples, not with its range of keys: for sparse keys (in the
// literature on sparse matrix products: expand, sort, compress). Tuples are collected in canonical order of the
// updates, and sorted by key so that this order stays within a key; then each key's terms are added from left to right.
// Owned by a BlockMerger. Unusable after an error or std::bad_alloc. Not thread-safe.
// Calls for each block, in ascending order: Collect, then once either (1) or (2):
//
//   RETURN_IF_ERROR(sort_fold.Collect(block));      // collects and sorts
//
//   sort_fold.FoldInto(folded);                     // (1) gives accumulators, which are not divided or rounded yet
//
//   const size_t rows = sort_fold.CountRows();      // (2) if IsDirect(): the caller claims places in the result for
//   sort_fold.WriteTo(output, rows);                //     these rows; this folds, divides, rounds and writes them
//
// The base is the rows that an earlier merge of this tensor has left. Its rows of the block are
//   collected before the updates' tuples   if the order matters (base_is_first), or a row has several values and the
//                                          fold is a sum (RowSums);
//   not read here                          otherwise: BlockMerger combines them with the folded rows.
template <typename Key, typename Fold>
class SortFold {
 public:
  using Acc = typename Fold::Acc;
  using Term = typename Fold::Term;
  using Rows = FoldedRows<Key, Fold>;
  using RowSums = cpu::RowSums<Key, Fold>;

  // `input` and `sources` must outlive this.
  SortFold(const MergeInput<Key, Fold>& input, Sources<Key, Fold>& sources)
      : sources_(sources),
        base_(input.base_is_first || RowSums::IsFor(input.shape) ? input.base : nullptr),
        shape_(input.shape),
        columns_(input.shape.columns),
        collector_(input, sources, base_) {
    if (RowSums::IsFor(shape_)) row_sums_.emplace(sources, base_, shape_);
  }

  // Collects and sorts the tuples of `block`, and moves the cursors of `sources` behind the last of them; the base's
  // cursor stays if its rows are not collected. Requires: the cursors are at the first tuples of the block.
  // Errors: RESOURCE_EXHAUSTED for 2^32 tuples or more, collected rows of the base included.
  absl::Status Collect(const Block<Key>& block) {
    const uint64_t tuples = collector_.FindTuples(block);
    if (tuples > UINT32_MAX) {
      return absl::ResourceExhaustedError(absl::StrCat(tuples, " tuples of sparse keys in one block"));
    }
    // A payload is the index of a term, and these ascend; or, for values of 4 bytes, the value itself.
    sort_.Sort(block.first, block.last, tuples, /*ascending=*/!collector_.payload_is_value(),
               [this](auto put) { collector_.Collect(put); });
    if (row_sums_) row_sums_->Group(sort_, collector_.origins().data());
    return absl::OkStatus();
  }

  // Replaces the contents of `rows` by one accumulator a key, not divided or rounded yet.
  void FoldInto(Rows& rows) {
    if (row_sums_) return row_sums_->MoveTo(rows);
    if (!kIsSum || !IsDirect() || sort_.words().empty()) return FoldEntries(sort_.words(), rows);
    const size_t num_rows = CountRows();
    rows.resize(0, shape_);
    rows.resize(num_rows, shape_);
    WriteTo(UnfinishedOutput(shape_, rows), num_rows);
  }

  // Returns: whether CountRows and WriteTo can fold the tuples collected last. The caller checks two things more:
  // the fold is SumFloat, since DirectOutput knows no other; and the base has no rows of the block that
  // were not collected, since these would be missing in the output.
  bool IsDirect() const { return row_sums_.has_value() || (columns_ == 1 && base_ == nullptr); }

  // Returns: the number of distinct keys collected.
  // Requires: IsDirect(), and what its comment leaves to the caller. Cost: one pass over the tuples; O(1) with RowSums.
  size_t CountRows() const { return row_sums_ ? row_sums_->num_rows() : CountKeys(CollectedTuplesOf()); }

  // Folds the collected tuples, divides, rounds and writes the rows. `rows`: what CountRows has returned.
  // Requires: as CountRows.
  void WriteTo(const DirectOutput<Key>& output, size_t rows) {
    if (row_sums_) return row_sums_->WriteTo(output);
    FoldTo(CollectedTuplesOf(), sort_.first(), rows, output);
    if (const Key* const keys = sort_.RankedKeys(); keys != nullptr) std::copy_n(keys, rows, output.keys);
  }

 private:
  static constexpr bool kIsSum = std::is_same_v<Fold, SumFloat>;

  CollectedTuples CollectedTuplesOf() const {
    static_assert(sizeof(TupleWord) == sizeof(uint64_t));
    CollectedTuples tuples;
    tuples.words = reinterpret_cast<const uint64_t*>(sort_.words().data());
    tuples.size = sort_.words().size();
    if constexpr (kIsSum) {
      if (!collector_.payload_is_value()) tuples.terms = collector_.terms().data();
      if (shape_.weights) tuples.weights = collector_.weights().data();
    }
    // There is an update: without one, each block begins at a key of the base, and its output is not direct. The first
    // update's dtype and scale are those of all updates if the payload is the value, and not read otherwise.
    tuples.dtype = sources_.cursors[0].dtype;
    tuples.value_scale = sources_.cursors[0].scale;
    return tuples;
  }

  void FoldEntries(const Column<TupleWord>& entries, Rows& rows) {
    rows.resize(0, shape_);
    rows.resize(entries.size(), shape_);
    size_t num_rows = 0;
    if (collector_.needs_origins()) {  // rows of several values, or collected rows of the base
      num_rows = FoldByOrigin(entries, rows);
    } else {
      num_rows = FoldTerms(entries, rows);
    }
    rows.resize(num_rows, shape_);
  }

  // Folds rows of at most one value; every entry is one contributor.
  // Returns: the number of rows.
  size_t FoldTerms(const Column<TupleWord>& entries, Rows& rows) {
    const Column<Term>& terms = collector_.terms();
    const size_t n = entries.size();
    size_t row = 0;
    for (size_t i = 0; i < n; ++row) {
      const uint64_t offset = entries[i].offset();
      const size_t begin = i;
      Acc acc = Fold::kStart;
      typename Rows::WeightSum weight = {};
      do {
        const size_t index = entries[i].payload();
        if (columns_ == 1) Fold::Add(acc, terms[index]);
        if (shape_.weights) AddWeight(collector_.weights()[index], weight);
        ++i;
      } while (i < n && entries[i].offset() == offset);
      rows.keys[row] = sort_.KeyOf(entries[begin]);
      if (columns_ == 1) rows.accs[row] = acc;
      if (shape_.counts) rows.counts[row] = static_cast<uint32_t>(i - begin);
      if (shape_.weights) rows.weights[row] = weight;
    }
    return row;
  }

  // Folds rows of any width, and rows of the base, which bring their own counts.
  // Returns: the number of rows.
  size_t FoldByOrigin(const Column<TupleWord>& entries, Rows& rows) {
    row_terms_.resize(columns_ + kVectorSlack);
    size_t row = 0;
    for (size_t i = 0; i < entries.size(); ++row) {
      const uint64_t offset = entries[i].offset();
      rows.keys[row] = sort_.KeyOf(entries[i]);
      Acc* accs = rows.accs.data() + row * columns_;
      std::fill_n(accs, columns_, Fold::kStart);
      uint32_t count = 0;
      typename Rows::WeightSum weight = {};
      for (; i < entries.size() && entries[i].offset() == offset; ++i) {
        const size_t index = entries[i].payload();
        const RowOrigin origin = collector_.origins()[index];
        if (shape_.weights) AddWeight(collector_.weights()[index], weight);
        if (origin.source == sources_.BaseIndex()) {
          for (size_t c = 0; c < columns_; ++c) Fold::Combine(accs[c], base_->accs[origin.row * columns_ + c]);
          if (shape_.counts) count += base_->counts[origin.row];
          continue;
        }
        if (columns_ == 1) {
          Fold::Add(*accs, collector_.terms()[index]);
        } else if (columns_ > 1) {
          sources_.LoadRows(origin.source, origin.row, 1, columns_, row_terms_.data());
          for (size_t c = 0; c < columns_; ++c) Fold::Add(accs[c], row_terms_[c]);
        }
        ++count;
      }
      if (shape_.counts) rows.counts[row] = count;
      if (shape_.weights) rows.weights[row] = weight;
    }
    return row;
  }

  Sources<Key, Fold>& sources_;
  const Rows* const base_;  // null unless the base's rows are collected (see above)
  const RowShape shape_;
  const size_t columns_;
  TupleCollector<Key, Fold> collector_;
  std::optional<RowSums> row_sums_;  // for the folds and shapes that RowSums serves
  TupleSort<Key> sort_;              // of the current block
  // Scratch of FoldByOrigin.
  Column<Term> row_terms_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_SORT_FOLD_H_
