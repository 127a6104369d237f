// Table fold: folds dense keys, window by window, in a table with one slot for each key.
#ifndef SPARSEAGG_HOST_CPU_MERGE_TABLE_FOLD_H_
#define SPARSEAGG_HOST_CPU_MERGE_TABLE_FOLD_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "host/base/column.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/simd/kernels.h"
#include "host/cpu/tuning.h"

namespace sparseagg::cpu {

// Table of accumulators, one slot for each key of a window, that stays in the cache (in the literature on sparse matrix
// products: a sparse accumulator). The sources are added one after another: first the base, the rows that an earlier
// merge of this tensor has left, then the updates. So each slot gets its terms in canonical order. Then the touched
// slots are moved out in order of key, so nothing is compared or sorted.
// Requires: each source lists a key once, and all its keys of a window before those of the next window. Within a window
// the keys of a source may come in any order.
//
// Owned by a BlockMerger, which makes windows small enough for the cache. For each window, in ascending order: Add,
// then one of (1), (2), (3), after which the table is empty again.
//
//   table_fold.Add(first, span);                  // adds all sources' rows of the window
//
//   table_fold.MoveTo(folded);                    // (1) gives accumulators, which are not divided or rounded yet
//
//   const size_t rows = table_fold.CountRows();   // (2) if IsWordTable(): the caller claims places in the result for
//   table_fold.WriteTo(output, rows);             //     these rows; this divides, rounds and writes them there
//
//   table_fold.WriteAllSlotsTo(output, span);     // (3) if CanWriteAllSlots(): the same for all slots, touched or not
//
// The caller takes (2) and (3) for SumFloat only, since DirectOutput knows no other fold.
// Not thread-safe. Errors: none but std::bad_alloc, of Add and MoveTo, after which the table is unusable.
template <typename Key, typename Fold>
class TableFold {
 public:
  using Acc = typename Fold::Acc;
  using Term = typename Fold::Term;
  using Rows = FoldedRows<Key, Fold>;
  using WeightSum = typename Rows::WeightSum;

  // Returns: whether AddToTable (simd/kernels.h) fills the tables, which alone takes unchecked keys.
  static bool HasKernel(const MergeInput<Key, Fold>& input) { return kHasKernel && input.shape.columns > 0; }

  // `input` and `sources` must outlive this.
  TableFold(const MergeInput<Key, Fold>& input, Sources<Key, Fold>& sources)
      : input_(input),
        sources_(sources),
        shape_(input.shape),
        columns_(input.shape.columns),
        count_bytes_(NarrowestCount(input)),
        has_kernel_(HasKernel(input)) {
    if (!has_kernel_) terms_.resize(std::max<size_t>(kTermBatch, columns_) + kVectorSlack);
  }

  // Adds the rows of all sources with keys from `first` to first + span − 1, and moves the sources' cursors behind the
  // last of them. Requires: the cursors are at the first of them; span ≥ 1; first + span − 1 is at most the largest
  // Key.
  void Add(Key first, uint64_t span) {
    MakeTable(span);
    const Key last = static_cast<Key>(first + (span - 1));
    first_ = first;
    span_ = span;
    const uint64_t rows = sources_.base.Advance(last);
    AddBase(first);
    tuples_ = rows;
    if constexpr (kHasKernel) {
      tuples_ += has_kernel_ ? AddToTable(WindowOf(first, last)) : AddUpdates(first, last);
    } else {
      tuples_ += AddUpdates(first, last);
    }
    if (input_.taken != nullptr) input_.taken->fetch_add(tuples_, std::memory_order_relaxed);
  }

  // Replaces the contents of `rows` by the touched slots' accumulators, not divided or rounded yet.
  void MoveTo(Rows& rows) {
    rows.resize(0, shape_);
    if (IsWordTable()) {
      const size_t moved = CountRows();
      rows.resize(moved, shape_);
      DirectOutput<Key> output = UnfinishedOutput(shape_, rows);
      output.dtype = DType::kInt64;  // the bits of accumulators of any type
      CompactTo(TableOfWords(), first_, moved, output);
      return;
    }
    rows.resize(std::min(span_, tuples_), shape_);
    rows.resize(WithCounts([&](auto counts) { return MoveRows(counts, rows); }), shape_);
  }

  // Returns: whether a key has one 64-bit accumulator, and no binned sum, as CompactTo (simd/kernels.h) needs.
  bool IsWordTable() const {
    return sizeof(Acc) == sizeof(uint64_t) && columns_ == 1 && (kHasKernel || !shape_.weights);
  }

  // Returns: the number of touched slots.
  // Requires: IsWordTable().
  size_t CountRows() { return CountTouched(TableOfWords()); }

  // Divides, rounds and writes the touched slots to the first `rows` rows of `output`.
  // Requires: IsWordTable(); `rows` is what CountRows has returned.
  void WriteTo(const DirectOutput<Key>& output, size_t rows) { CompactTo(TableOfWords(), first_, rows, output); }

  // Returns: whether WriteAllSlotsTo serves this table: one 64-bit accumulator a key; or several, with neither counters
  // nor sums of weights.
  bool CanWriteAllSlots() const {
    const bool only_accumulators = !shape_.weights && count_bytes_ == CountBytes::kNone;
    return IsWordTable() || (sizeof(Acc) == sizeof(uint64_t) && only_accumulators);
  }

  // Divides, rounds and writes the slots of the window's first `span` keys, touched or not, one behind another from the
  // first row of `output` on. `span` is that of Add; or less in the last window, if that one goes beyond the tensor's
  // number of keys. Requires: CanWriteAllSlots(); the slots left out are untouched.
  void WriteAllSlotsTo(const DirectOutput<Key>& output, uint64_t span) {
    SlotTable table = TableOfWords();
    table.slots = span * columns_;  // here a slot is one accumulator
    WriteAllSlots(table, output);
  }

 private:
  // Folds whose table AddToTable (simd/kernels.h) can fill; AddUpdates fills all others.
  static constexpr bool kHasKernel = std::is_same_v<Fold, SumFloat>;

  // Returns: the narrowest counter that can count all sources. The float sum needs none unless counts are asked for:
  // its untouched slots are −0.0, and touched ones never are, since no term is −0.0 and x − x is +0.0 (see SumFloat).
  // Without an accumulator, and in other folds, a slot is touched if its count is not 0. Counts of the base need four
  // bytes, since they may be large; so do sums of weights, for which the kernels have no narrower counters.
  static CountBytes NarrowestCount(const MergeInput<Key, Fold>& input) {
    const bool counts_mark_touched = !std::is_same_v<Fold, SumFloat> || input.shape.columns == 0;
    if (!input.shape.counts && !counts_mark_touched) return CountBytes::kNone;
    const size_t sources = input.updates.size() + (input.base != nullptr ? 1 : 0);
    const bool base_counts = input.base != nullptr && input.shape.counts;
    if (sources >> 16 != 0 || base_counts || input.shape.weights) return CountBytes::kFour;
    return sources >> 8 != 0 ? CountBytes::kTwo : CountBytes::kOne;
  }

  TableWindow<Key> WindowOf(Key first, Key last) {
    TableWindow<Key> window;
    window.cursors = sources_.cursors.data();
    window.num_cursors = sources_.cursors.size();
    window.first = first;
    window.last = last;
    window.last_row = last;
    if (input_.spec->num_rows != 0)
      window.last_row = static_cast<Key>(std::min<uint64_t>(last, input_.spec->num_rows - 1));
    window.columns = columns_;
    window.table = table_.data();
    window.count_bytes = count_bytes_;
    window.counts = counts_.data();
    if (shape_.weights) window.weights = FloatsOf(weights_);
    window.tuples_ahead = sources_.TuplesAhead();
    return window;
  }

  // Grows the table to `span` slots. Filling the old slots, too, changes nothing: between windows all are untouched.
  void MakeTable(uint64_t span) {
    if (table_slots_ >= span) return;
    table_slots_ = span;
    table_.resize(span * columns_ + kVectorSlack);
    std::fill(table_.begin(), table_.end(), Fold::kStart);
    counts_.resize((span + kVectorSlack) * static_cast<size_t>(count_bytes_));
    std::fill(counts_.begin(), counts_.end(), std::byte{0});
    if (!shape_.weights) return;
    weights_.resize(span + kVectorSlack);
    std::fill(weights_.begin(), weights_.end(), WeightSum());
  }

  template <typename Count>
  Count* Counts() {
    return reinterpret_cast<Count*>(counts_.data());
  }

  // Calls step(counters) with a pointer to counters of their type, or with nullptr if the table has none.
  template <typename Step>
  auto WithCounts(Step step) {
    switch (count_bytes_) {
      case CountBytes::kOne:
        return step(Counts<uint8_t>());
      case CountBytes::kTwo:
        return step(Counts<uint16_t>());
      case CountBytes::kFour:
        return step(Counts<uint32_t>());
      case CountBytes::kNone:
        break;
    }
    return step(nullptr);
  }

  // Adds the rows of the base up to its cursor's stop, whose counts are 1 or more. Where the order matters, the base's
  // submissions precede the updates' in canonical order: MergeInput::base_is_first.
  void AddBase(Key first) {
    Cursor<Key>& base = sources_.base;
    const uint64_t begin = base.position;
    base.position = base.stop;
    if (begin == base.stop) return;
    const Key* keys = input_.base->keys.data();
    const Acc* accs = input_.base->accs.data();
    const auto slot_of = [keys, first](uint64_t row) { return static_cast<uint64_t>(keys[row] - first); };
    WithCounts([&](auto counts) {
      for (uint64_t row = begin; row < base.stop; ++row) {
        Acc* slot = table_.data() + slot_of(row) * columns_;
        if (columns_ == 1) {
          Fold::Combine(*slot, accs[row]);
        } else {
          for (size_t c = 0; c < columns_; ++c) Fold::Combine(slot[c], accs[row * columns_ + c]);
        }
        if constexpr (!std::is_same_v<decltype(counts), std::nullptr_t>) {
          using Count = std::remove_pointer_t<decltype(counts)>;
          counts[slot_of(row)] = shape_.counts ? static_cast<Count>(input_.base->counts[row]) : Count{1};
        }
      }
    });
    if (!shape_.weights) return;
    for (uint64_t row = begin; row < base.stop; ++row) weights_[slot_of(row)] = input_.base->weights[row];
  }

  // What AddToTable does, for other folds.
  uint64_t AddUpdates(Key first, Key last) {
    uint64_t tuples = 0;
    for (size_t k = 0; k < sources_.cursors.size(); ++k) tuples += AddUpdate(k, first, last);
    return tuples;
  }

  // Adds the tuples of update k with keys up to `last`.
  // Returns: their number.
  uint64_t AddUpdate(size_t k, Key first, Key last) {
    Cursor<Key>& cursor = sources_.cursors[k];
    const uint64_t tuples = cursor.Advance(last);
    const uint64_t batch = columns_ <= 1 ? kTermBatch : std::max<uint64_t>(1, kTermBatch / columns_);
    for (uint64_t begin = cursor.position; begin < cursor.stop; begin += batch) {
      const size_t n = static_cast<size_t>(std::min(batch, cursor.stop - begin));
      if (columns_ > 0) sources_.LoadRows(k, begin, n, columns_, terms_.data());
      if (cursor.keys != nullptr) {
        const Key* keys = cursor.keys + begin;
        AddTerms(k, n, [keys, first](size_t i) { return static_cast<uint64_t>(static_cast<Key>(keys[i] - first)); });
      } else {
        const uint64_t slot = static_cast<uint64_t>(cursor[begin]) - first;
        AddTerms(k, n, [slot](size_t i) { return slot + i; });
      }
    }
    cursor.position = cursor.stop;
    return tuples;
  }

  // Adds n rows of terms_ of update k. slot_of(i): slot of row i.
  template <typename SlotOf>
  void AddTerms(size_t k, size_t n, SlotOf slot_of) {
    Acc* table = table_.data();
    const Term* terms = terms_.data();
    if (columns_ == 1) {
      for (size_t i = 0; i < n; ++i) Fold::Add(table[slot_of(i)], terms[i]);
    } else {
      for (size_t i = 0; i < n; ++i) {
        Acc* row = table + slot_of(i) * columns_;
        for (size_t c = 0; c < columns_; ++c) Fold::Add(row[c], terms[i * columns_ + c]);
      }
    }
    WithCounts([&](auto counts) {
      if constexpr (!std::is_same_v<decltype(counts), std::nullptr_t>) {
        for (size_t i = 0; i < n; ++i) ++counts[slot_of(i)];
      }
    });
    if (!shape_.weights) return;
    for (size_t i = 0; i < n; ++i) AddWeight(sources_.sources[k].key_weight, weights_[slot_of(i)]);
  }

  SlotTable TableOfWords() {
    SlotTable table;
    table.accs = table_.data();
    table.count_bytes = count_bytes_;
    table.counts = counts_.data();
    if (shape_.weights) table.weights = FloatsOf(weights_);
    table.slots = span_;
    if constexpr (sizeof(Acc) == sizeof(uint64_t)) table.untouched = std::bit_cast<uint64_t>(Fold::kStart);
    return table;
  }

  // MoveTo, for tables that CompactTo does not serve.
  // Returns: the number of rows.
  template <typename Counts>
  size_t MoveRows(Counts counts, Rows& rows) {
    size_t row = 0;
    for (uint64_t slot = 0; slot < span_; ++slot) {
      Acc* accs = table_.data() + slot * columns_;
      if constexpr (!std::is_same_v<Counts, std::nullptr_t>) {
        if (counts[slot] == 0) continue;
        if (shape_.counts) rows.counts[row] = counts[slot];
        counts[slot] = 0;
      } else if constexpr (std::is_same_v<Fold, SumFloat>) {
        // Only the float sum has no counters, and it has at least one column: its first is −0.0 if untouched.
        if (std::bit_cast<uint64_t>(*accs) == std::bit_cast<uint64_t>(-0.0)) continue;
      }
      rows.keys[row] = static_cast<Key>(first_ + slot);
      std::copy_n(accs, columns_, rows.accs.data() + row * columns_);
      std::fill_n(accs, columns_, Fold::kStart);
      if (shape_.weights) rows.weights[row] = std::exchange(weights_[slot], {});
      ++row;
    }
    return row;
  }

  const MergeInput<Key, Fold>& input_;
  Sources<Key, Fold>& sources_;
  const RowShape shape_;
  const size_t columns_;
  const CountBytes count_bytes_;
  const bool has_kernel_;
  Column<Term> terms_;
  // The current window.
  Key first_ = 0;
  uint64_t span_ = 0;
  uint64_t tuples_ = 0;  // of updates and base
  // The table. Untouched slots hold kStart, count 0 and weight 0.
  uint64_t table_slots_ = 0;
  Column<Acc> table_;
  Column<std::byte> counts_;
  Column<WeightSum> weights_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_TABLE_FOLD_H_
