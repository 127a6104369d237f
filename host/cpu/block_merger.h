// Folds the tuples of all updates, block of keys by block of keys.
#ifndef SPARSEAGG_HOST_CPU_BLOCK_MERGER_H_
#define SPARSEAGG_HOST_CPU_BLOCK_MERGER_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "host/column.h"
#include "host/cpu/folded_rows.h"
#include "host/cpu/kernels.h"
#include "host/cpu/merge_input.h"
#include "host/cpu/radix_sort.h"
#include "host/cpu/terms.h"
#include "host/cpu/tuning.h"
#include "host/status_macros.h"

namespace sparseagg::cpu {

// One cursor a source walks its keys in ascending order, block by block. A block is folded in one of two ways:
//
//   sweep    where its keys lie densely: a table of accumulators, one slot a key. The updates are added one after
//            another, so each slot sees its terms in canonical order; then the touched slots are compacted.
//   gather   where they lie thinly: the tuples are collected, update after update, sorted by key (stably, so that the
//            canonical order stays within a key) and folded from left to right.
//
// Both do the same arithmetic in the same order at every key. Used by one thread.
template <typename Key, typename Fold>
class BlockMerger {
 public:
  using Acc = typename Fold::Acc;
  using Term = typename Fold::Term;
  using Rows = FoldedRows<Key, Acc>;

  explicit BlockMerger(const MergeInput<Key, Fold>& input)
      : input_(input),
        shape_(input.shape),
        columns_(input.shape.columns),
        slots_(!input.shape.counts                                                 ? Slots::kMarked
               : input.base == nullptr && input.updates.size() < (size_t{1} << 16) ? Slots::kCount16
                                                                                   : Slots::kCount32) {
    if (input.base != nullptr) {
      base_.reader = {input.base->keys.data(), 0};
      base_.end = input.base->size();
    }
    cursors_.reserve(input.updates.size());
    for (const CpuUpdate* update : input.updates) {
      Cursor cursor;
      cursor.reader = ReaderOf<Key>(update->keys);
      cursor.end = update->num_keys;
      cursor.values = update->values;
      cursors_.push_back(cursor);
      Source source;
      source.value_bytes = SizeOf(update->dtype);
      source.load = TermLoader<Term>(update->dtype);
      source.params = MakeTermParams(*input.spec, update->weight);
      source.float_weight = update->weight;
      if (shape_.key_weights == KeyWeights::kFixed) {
        source.fixed_weight = std::llrint(update->weight * input.weight_scale);
      }
      sources_.push_back(source);
    }
    terms_.resize(std::max<size_t>(kTermBatch, columns_) + kVectorSlack);
  }

  // Folds the keys of one block, first to last, and hands the rows to sink(rows, is_last) in one or more ascending
  // pieces, which the sink may change. Blocks are merged in ascending order; some may be left out.
  template <typename Sink>
  absl::Status MergeBlock(Key first, Key last, Sink&& sink) {
    if (first > next_key_) SkipTo(first);
    next_key_ = static_cast<Key>(last + 1);
    uint64_t tuples = Advance(base_, last);
    for (size_t k = 0; k < cursors_.size(); ++k) {
      if (k + kPrefetch < cursors_.size()) {
        const Cursor& ahead = cursors_[k + kPrefetch];
        if (ahead.reader.keys != nullptr) __builtin_prefetch(ahead.reader.keys + ahead.position);
      }
      tuples += Advance(cursors_[k], last);
    }
    const uint64_t span_minus_one = static_cast<uint64_t>(last) - first;
    if (tuples == 0 || span_minus_one / kSweepSpanPerTuple >= tuples) {
      const int offset_bits = std::bit_width(span_minus_one);
      RETURN_IF_ERROR(offset_bits <= 32 ? Gather(first, offset_bits, tuples, entries_, entry_scratch_)
                                        : Gather(first, offset_bits, tuples, wide_entries_, wide_entry_scratch_));
      return sink(rows_, true);
    }
    const uint64_t window = std::max<uint64_t>(1, kWindowValues / std::max<size_t>(columns_, 1));
    for (uint64_t offset = 0;; offset += window) {
      const uint64_t size = std::min(window - 1, span_minus_one - offset) + 1;
      const bool is_last = span_minus_one - offset < window;
      if (!is_last || offset > 0) {  // the block is larger than the table
        const Key window_last = static_cast<Key>(first + offset + (size - 1));
        tuples = Advance(base_, window_last);
        for (Cursor& cursor : cursors_) tuples += Advance(cursor, window_last);
      }
      Sweep(static_cast<Key>(first + offset), size, tuples);
      RETURN_IF_ERROR(sink(rows_, is_last));
      if (is_last) return absl::OkStatus();
    }
  }

 private:
  static constexpr size_t kPrefetch = 8;  // cursors ahead

  // How touched slots are told from others.
  enum class Slots {
    kMarked,   // by the accumulator: it is not Fold::kStart any more. Only the float sum has such a value.
    kCount16,  // by the number of contributors, which is wanted as well
    kCount32,
  };

  // What every block looks at.
  struct Cursor {
    KeyReader<Key> reader;
    uint64_t position = 0;
    uint64_t stop = 0;  // end of the current block's tuples
    uint64_t end = 0;
    const std::byte* values = nullptr;
  };
  // What only a visit with tuples needs.
  struct Source {
    size_t value_bytes = 0;
    LoadTerms<Term> load = nullptr;
    TermParams params;
    double float_weight = 1.0;
    int64_t fixed_weight = 0;
  };

  // Moves `stop` behind the last key ≤ `last` and returns the tuples passed.
  static uint64_t Advance(Cursor& cursor, Key last) {
    const uint64_t left = cursor.end - cursor.position;
    uint64_t passed = 0;
    if (cursor.reader.keys != nullptr) {
      passed = CountUpTo(cursor.reader.keys + cursor.position, left, last);
    } else if (left > 0 && cursor.reader[cursor.position] <= last) {
      passed = std::min<uint64_t>(left - 1, last - cursor.reader[cursor.position]) + 1;
    }
    cursor.stop = cursor.position + passed;
    return passed;
  }

  // Terms of rows [begin, begin + n).
  void LoadRows(const Cursor& cursor, const Source& source, uint64_t begin, size_t n) {
    source.load(cursor.values, cursor.end * columns_, begin * columns_, n * columns_, source.params, terms_.data());
  }

  void SkipTo(Key first) {
    // Other threads' blocks may lie between: doubling steps, then bisection.
    const auto skip = [first](Cursor& cursor) {
      uint64_t low = cursor.position;
      uint64_t step = 1;
      while (low + step <= cursor.end && cursor.reader[low + step - 1] < first) {
        low += step;
        step *= 2;
      }
      uint64_t high = std::min(low + step - 1, cursor.end);
      while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (cursor.reader[middle] < first) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      cursor.position = low;
    };
    skip(base_);
    for (Cursor& cursor : cursors_) skip(cursor);
  }

  // ---- sweep ----

  void Sweep(Key first, uint64_t span, uint64_t tuples) {
    MakeTable(span);
    SweepBase(first);
    for (size_t k = 0; k < cursors_.size(); ++k) {
      if (k + kPrefetch < cursors_.size()) {
        const Cursor& ahead = cursors_[k + kPrefetch];
        __builtin_prefetch(ahead.values + ahead.position * sources_[k + kPrefetch].value_bytes * columns_);
      }
      Cursor& cursor = cursors_[k];
      if (cursor.position == cursor.stop) continue;
      switch (slots_) {
        case Slots::kMarked:
          SweepUpdate(first, cursor, sources_[k], [](uint64_t) {});
          break;
        case Slots::kCount16:
          SweepUpdate(first, cursor, sources_[k], [counts = counts16_.data()](uint64_t slot) { ++counts[slot]; });
          break;
        case Slots::kCount32:
          SweepUpdate(first, cursor, sources_[k], [counts = counts32_.data()](uint64_t slot) { ++counts[slot]; });
          break;
      }
      cursor.position = cursor.stop;
    }
    Compact(first, span, std::min(span, tuples));
  }

  void MakeTable(uint64_t span) {
    if (table_slots_ >= span) return;
    table_slots_ = span;
    table_.resize(span * columns_);
    std::fill(table_.begin(), table_.end(), Fold::kStart);
    if (slots_ == Slots::kCount16) counts16_.assign(span, 0);
    if (slots_ == Slots::kCount32) counts32_.assign(span, 0);
    if (shape_.key_weights == KeyWeights::kFloat) float_weights_.assign(span, 0.0);
    if (shape_.key_weights == KeyWeights::kFixed) fixed_weights_.assign(span, 0);
  }

  void SweepBase(Key first) {
    const uint64_t begin = base_.position;
    const uint64_t end = base_.stop;
    base_.position = end;
    if (begin == end) return;
    const Key* keys = input_.base->keys.data();
    const Acc* accs = input_.base->accs.data();
    const uint32_t* counts = input_.base->counts.data();
    for (uint64_t row = begin; row < end; ++row) {
      const uint64_t slot = static_cast<uint64_t>(keys[row] - first);
      if (columns_ == 1) {
        Fold::Combine(table_[slot], accs[row]);
      } else {
        for (size_t c = 0; c < columns_; ++c) Fold::Combine(table_[slot * columns_ + c], accs[row * columns_ + c]);
      }
      counts32_[slot] += counts[row];
    }
    if (shape_.key_weights != KeyWeights::kFixed) return;
    for (uint64_t row = begin; row < end; ++row) fixed_weights_[keys[row] - first] += input_.base->fixed_weights[row];
  }

  template <typename Count>
  void SweepUpdate(Key first, const Cursor& cursor, const Source& source, Count count) {
    const uint64_t batch = columns_ <= 1 ? kTermBatch : std::max<uint64_t>(1, kTermBatch / columns_);
    for (uint64_t begin = cursor.position; begin < cursor.stop; begin += batch) {
      const size_t n = static_cast<size_t>(std::min(batch, cursor.stop - begin));
      if (columns_ > 0) LoadRows(cursor, source, begin, n);
      if (cursor.reader.keys != nullptr) {
        const Key* keys = cursor.reader.keys + begin;
        AddTerms(n, source, count, [keys, first](size_t i) { return static_cast<uint64_t>(keys[i] - first); });
      } else {
        const uint64_t slot = static_cast<uint64_t>(cursor.reader[begin]) - first;
        AddTerms(n, source, count, [slot](size_t i) { return slot + i; });
      }
    }
  }

  template <typename Count, typename SlotOf>
  void AddTerms(size_t n, const Source& source, Count count, SlotOf slot_of) {
    Acc* table = table_.data();
    const Term* terms = terms_.data();
    if (columns_ == 1) {
      for (size_t i = 0; i < n; ++i) {
        const uint64_t slot = slot_of(i);
        Fold::Add(table[slot], terms[i]);
        count(slot);
      }
    } else {
      for (size_t i = 0; i < n; ++i) {
        const uint64_t slot = slot_of(i);
        AddRowTerms(table + slot * columns_, terms + i * columns_);
        count(slot);
      }
    }
    if (shape_.key_weights == KeyWeights::kFloat) {
      for (size_t i = 0; i < n; ++i) float_weights_[slot_of(i)] += source.float_weight;
    } else if (shape_.key_weights == KeyWeights::kFixed) {
      for (size_t i = 0; i < n; ++i) fixed_weights_[slot_of(i)] += source.fixed_weight;
    }
  }

  void AddRowTerms(Acc* row, const Term* terms) const {
    if constexpr (std::is_same_v<Fold, SumFloat>) {
      AddRow(row, terms, columns_);
    } else {
      for (size_t c = 0; c < columns_; ++c) Fold::Add(row[c], terms[c]);
    }
  }

  // Moves touched slots to rows_ and makes the table fresh again.
  void Compact(Key first, uint64_t span, uint64_t max_rows) {
    rows_.resize(0, shape_);
    rows_.resize(max_rows + kVectorSlack, shape_);
    size_t rows = 0;
    if constexpr (sizeof(Acc) == sizeof(uint64_t)) {
      if (columns_ == 1 && shape_.key_weights == KeyWeights::kNone) {
        const auto fresh = std::bit_cast<uint64_t>(Fold::kStart);
        Key* keys = rows_.keys.data();
        Acc* accs = rows_.accs.data();
        switch (slots_) {
          case Slots::kMarked:
            rows = CompactMarked(table_.data(), span, fresh, first, keys, accs);
            break;
          case Slots::kCount16:
            rows = CompactCounted(table_.data(), counts16_.data(), span, fresh, first, keys, accs, rows_.counts.data());
            break;
          case Slots::kCount32:
            rows = CompactCounted(table_.data(), counts32_.data(), span, fresh, first, keys, accs, rows_.counts.data());
            break;
        }
        rows_.resize(rows, shape_);
        return;
      }
    }
    for (uint64_t slot = 0; slot < span; ++slot) {
      if (!TakeCount(slot, rows)) continue;
      rows_.keys[rows] = static_cast<Key>(first + slot);
      for (size_t c = 0; c < columns_; ++c) {
        rows_.accs[rows * columns_ + c] = std::exchange(table_[slot * columns_ + c], Fold::kStart);
      }
      if (shape_.key_weights == KeyWeights::kFloat) {
        rows_.float_weights[rows] = std::exchange(float_weights_[slot], 0.0);
      } else if (shape_.key_weights == KeyWeights::kFixed) {
        rows_.fixed_weights[rows] = std::exchange(fixed_weights_[slot], 0);
      }
      ++rows;
    }
    rows_.resize(rows, shape_);
  }

  // Whether the slot was touched; its count goes to rows_.counts[row].
  bool TakeCount(uint64_t slot, size_t row) {
    switch (slots_) {
      case Slots::kMarked:
        if constexpr (std::is_same_v<Fold, SumFloat>) {
          return std::bit_cast<uint64_t>(table_[slot * columns_]) != std::bit_cast<uint64_t>(Fold::kStart);
        }
        return false;
      case Slots::kCount16:
        if (counts16_[slot] == 0) return false;
        rows_.counts[row] = std::exchange(counts16_[slot], uint16_t{0});
        return true;
      case Slots::kCount32:
        if (counts32_[slot] == 0) return false;
        rows_.counts[row] = std::exchange(counts32_[slot], 0u);
        return true;
    }
    return false;
  }

  // ---- gather ----

  static constexpr uint32_t kFromBase = static_cast<uint32_t>(-1);
  struct Origin {
    uint32_t source;
    uint64_t row;
  };

  // Rows of one value are copied beside the entries; longer ones, and weights, are found again by their origin.
  bool KeepsOrigins() const {
    return columns_ > 1 || input_.base != nullptr || shape_.key_weights != KeyWeights::kNone;
  }

  // A key's offset from the block's first key, below 2^32, and the tuple's position, in one word.
  struct Entry {
    static Entry Make(uint64_t offset, uint64_t position) { return {offset << 32 | position}; }
    uint64_t offset() const { return word >> 32; }
    uint32_t position() const { return static_cast<uint32_t>(word); }
    uint64_t word;
  };
  // The same for blocks that span more.
  struct WideEntry {
    static WideEntry Make(uint64_t offset, uint64_t position) { return {offset, static_cast<uint32_t>(position)}; }
    uint64_t offset() const { return offset_; }
    uint32_t position() const { return position_; }
    uint64_t offset_;
    uint32_t position_;
  };

  template <typename E>
  absl::Status Gather(Key first, int offset_bits, uint64_t tuples, Column<E>& entries, Column<E>& scratch) {
    if (tuples > UINT32_MAX) {
      return absl::ResourceExhaustedError(absl::StrCat(tuples, " thinly spread tuples in one block"));
    }
    entries.resize(0);
    entries.resize(tuples);
    if (columns_ == 1) gathered_.resize(tuples);
    if (KeepsOrigins()) origins_.resize(tuples);
    size_t at = 0;
    for (; base_.position < base_.stop; ++base_.position, ++at) {
      const uint64_t row = base_.position;
      if (columns_ == 1) gathered_[at] = input_.base->accs[row];
      origins_[at] = {kFromBase, row};
      entries[at] = E::Make(base_.reader[row] - first, at);
    }
    for (size_t k = 0; k < cursors_.size(); ++k) at = GatherUpdate(k, first, at, entries);
    StableSortByKey(entries, scratch, offset_bits, [](const E& entry) { return entry.offset(); });
    rows_.resize(0, shape_);
    rows_.resize(tuples, shape_);
    rows_.resize(KeepsOrigins() ? FoldByOrigin(first, entries) : FoldValues(first, entries), shape_);
    return absl::OkStatus();
  }

  template <typename E>
  size_t GatherUpdate(size_t k, Key first, size_t at, Column<E>& entries) {
    Cursor& cursor = cursors_[k];
    const Source& source = sources_[k];
    while (cursor.position < cursor.stop) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(kTermBatch, cursor.stop - cursor.position));
      if (columns_ == 1) {
        LoadRows(cursor, source, cursor.position, n);
        std::copy_n(terms_.begin(), n, gathered_.begin() + at);
      }
      if (KeepsOrigins()) {
        for (size_t i = 0; i < n; ++i) origins_[at + i] = {static_cast<uint32_t>(k), cursor.position + i};
      }
      for (size_t i = 0; i < n; ++i) {
        const Key key = cursor.reader[cursor.position + i];
        entries[at + i] = E::Make(key - first, at + i);
      }
      cursor.position += n;
      at += n;
    }
    return at;
  }

  // The plain case: at most one column, every entry one contributor.
  template <typename E>
  size_t FoldValues(Key first, const Column<E>& entries) {
    size_t rows = 0;
    for (size_t i = 0; i < entries.size(); ++rows) {
      const uint64_t offset = entries[i].offset();
      const size_t begin = i;
      Acc acc = Fold::kStart;
      do {
        if (columns_ == 1) Fold::Combine(acc, gathered_[entries[i].position()]);
        ++i;
      } while (i < entries.size() && entries[i].offset() == offset);
      rows_.keys[rows] = static_cast<Key>(first + offset);
      if (columns_ == 1) rows_.accs[rows] = acc;
      if (shape_.counts) rows_.counts[rows] = static_cast<uint32_t>(i - begin);
    }
    return rows;
  }

  template <typename E>
  size_t FoldByOrigin(Key first, const Column<E>& entries) {
    size_t rows = 0;
    for (size_t i = 0; i < entries.size(); ++rows) {
      const uint64_t offset = entries[i].offset();
      rows_.keys[rows] = static_cast<Key>(first + offset);
      Acc* row = rows_.accs.data() + rows * columns_;
      std::fill_n(row, columns_, Fold::kStart);
      uint32_t count = 0;
      double float_weight = 0.0;
      int64_t fixed_weight = 0;
      for (; i < entries.size() && entries[i].offset() == offset; ++i) {
        const Origin origin = origins_[entries[i].position()];
        if (origin.source == kFromBase) {
          const Acc* from = input_.base->accs.data() + origin.row * columns_;
          for (size_t c = 0; c < columns_; ++c) Fold::Combine(row[c], from[c]);
          count += input_.base->counts[origin.row];
          if (shape_.key_weights == KeyWeights::kFixed) fixed_weight += input_.base->fixed_weights[origin.row];
          continue;
        }
        const Source& source = sources_[origin.source];
        if (columns_ == 1) {
          Fold::Combine(*row, gathered_[entries[i].position()]);
        } else if (columns_ > 1) {
          LoadRows(cursors_[origin.source], source, origin.row, 1);
          AddRowTerms(row, terms_.data());
        }
        ++count;
        float_weight += source.float_weight;
        fixed_weight += source.fixed_weight;
      }
      if (shape_.counts) rows_.counts[rows] = count;
      if (shape_.key_weights == KeyWeights::kFloat) rows_.float_weights[rows] = float_weight;
      if (shape_.key_weights == KeyWeights::kFixed) rows_.fixed_weights[rows] = fixed_weight;
    }
    return rows;
  }

  const MergeInput<Key, Fold>& input_;
  const RowShape shape_;
  const size_t columns_;
  const Slots slots_;
  Cursor base_;
  std::vector<Cursor> cursors_;
  std::vector<Source> sources_;
  Key next_key_ = 0;  // the cursors stand before it
  Column<Term> terms_;
  Rows rows_;
  // Sweep: one slot a key of the window; untouched slots hold kStart and 0.
  uint64_t table_slots_ = 0;
  Column<Acc> table_;
  std::vector<uint16_t> counts16_;
  std::vector<uint32_t> counts32_;
  std::vector<double> float_weights_;
  std::vector<int64_t> fixed_weights_;
  // Gather.
  Column<Entry> entries_;
  Column<Entry> entry_scratch_;
  Column<WideEntry> wide_entries_;
  Column<WideEntry> wide_entry_scratch_;
  Column<Acc> gathered_;
  Column<Origin> origins_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_BLOCK_MERGER_H_
