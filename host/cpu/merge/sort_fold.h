// Folds a block of keys that lie thinly.
#ifndef SPARSEAGG_HOST_CPU_MERGE_SORT_FOLD_H_
#define SPARSEAGG_HOST_CPU_MERGE_SORT_FOLD_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "host/base/column.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/merge_input.h"
#include "host/cpu/merge/row_sums.h"
#include "host/cpu/merge/slot_sort.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/prepare/coarse_order.h"
#include "host/cpu/prepare/radix_sort.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/simd/kernels.h"
#include "host/cpu/simd/row_kernels.h"
#include "host/cpu/simd/sort_fold_kernels.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// The tuples are collected, update after update, sorted by key (so that the canonical order stays within a key: by
// slots as they are collected, where that pays, else by digits) and folded from left to right. What is sorted beside a
// key is 32 bits wide: the value itself where it fits and one conversion serves all updates, else where its term was
// put as it was collected. Sums of rows of several values also take in what was merged before. Used by one thread.
template <typename Key, typename Fold>
class SortFold {
 public:
  using Acc = typename Fold::Acc;
  using Term = typename Fold::Term;
  using Rows = FoldedRows<Key, Acc>;
  using RowSums = cpu::RowSums<Key, Fold>;

  SortFold(const MergeInput<Key, Fold>& input, Sources<Key, Fold>& sources)
      : sources_(sources),
        first_rows_(input.base_is_first || RowSums::IsFor(input.shape) ? input.base : nullptr),
        shape_(input.shape),
        columns_(input.shape.columns),
        carries_values_(CarriesValues(input)) {
    if (RowSums::IsFor(shape_)) row_sums_.emplace(sources, first_rows_, shape_);
  }

  // Collects and sorts the updates' tuples in the block, from where the cursors stand, and returns how many there are.
  // One of the following folds them. kOutOfOrder; RESOURCE_EXHAUSTED: 2^32 tuples or more.
  absl::StatusOr<uint64_t> Collect(const Block<Key>& block) {
    const uint64_t max_offset = static_cast<uint64_t>(block.last) - block.first;
    first_ = block.first;
    is_narrow_ = std::bit_width(max_offset) <= 32;
    const uint64_t first_rows = first_rows_ != nullptr ? sources_.base.Advance(block.last) : 0;
    const uint64_t passed = sources_.Advance(block.last);
    if (passed == kOutOfOrder) return passed;
    const uint64_t tuples = first_rows + passed + FindBuckets(block);
    if (tuples > UINT32_MAX) {
      return absl::ResourceExhaustedError(absl::StrCat(tuples, " thinly spread tuples in one block"));
    }
    if (is_narrow_ && slots_.Wants(max_offset, tuples)) {
      SlotSort::Writer writer = slots_.Begin(max_offset, tuples);
      CollectTo(tuples, [&writer](uint64_t offset, uint32_t carried) { writer.Put(offset, carried); });
      slots_.Finish(!carries_values_, entries_);
    } else if (is_narrow_) {
      CollectAndSort(max_offset, tuples, entries_, entry_scratch_);
    } else {
      CollectAndSort(max_offset, tuples, wide_entries_, wide_entry_scratch_);
    }
    if (row_sums_) {
      is_narrow_ ? row_sums_->Group(entries_, first_, origins_.data())
                 : row_sums_->Group(wide_entries_, first_, origins_.data());
    }
    return tuples - first_rows;
  }

  // Folds what has been collected into `rows`.
  void FoldInto(Rows& rows) {
    if (row_sums_) {
      row_sums_->MoveTo(rows);
    } else {
      is_narrow_ ? FoldEntries(entries_, rows) : FoldEntries(wide_entries_, rows);
    }
  }

  // Whether this can be done in two steps, straight to the result, by a sink of plain rows.
  bool IsDirect() const { return row_sums_.has_value() || (is_narrow_ && columns_ == 1 && first_rows_ == nullptr); }
  // Those steps: how many rows there are, and there they go.
  size_t CountRows() const { return row_sums_ ? row_sums_->num_rows() : CountKeys(Words()); }
  void WriteTo(const DirectOutput<Key>& output, size_t rows) {
    row_sums_ ? row_sums_->WriteTo(output) : FoldTo(Words(), first_, rows, output);
  }

 private:
  using Entry = TupleWord;
  // The same for blocks that span more.
  struct WideEntry {
    static WideEntry Make(uint64_t offset, uint32_t carried) { return {offset, carried}; }
    uint64_t offset() const { return offset_; }
    uint32_t carried() const { return carried_; }
    uint64_t offset_;
    uint32_t carried_;
  };

  // Whether values are sorted along with the keys.
  static bool CarriesValues(const MergeInput<Key, Fold>& input) {
    if (input.shape.columns != 1 || input.shape.key_weights != KeyWeights::kNone || input.base_is_first) return false;
    for (const CpuUpdate* update : input.updates) {
      if (update->dtype != input.updates[0]->dtype || update->weight != input.updates[0]->weight) return false;
    }
    return !input.updates.empty() && SizeOf(input.updates[0]->dtype) <= sizeof(uint32_t);
  }

  // Rows of one value are collected as terms; longer ones and rows merged before are found again by their origin.
  bool KeepsOrigins() const { return columns_ > 1 || first_rows_ != nullptr; }

  CollectedTuples Words() const {
    static_assert(sizeof(Entry) == sizeof(uint64_t));
    CollectedTuples tuples;
    tuples.words = reinterpret_cast<const uint64_t*>(entries_.data());
    tuples.size = entries_.size();
    if (!carries_values_) tuples.terms = terms_.data();
    if (shape_.key_weights != KeyWeights::kNone) tuples.weights = weights_.data();
    tuples.dtype = sources_.cursors[0].dtype;
    tuples.weight = sources_.cursors[0].weight;
    tuples.fixed = std::is_same_v<Fold, SumFixed>;
    tuples.bound = sources_.sources[0].params.bound;
    tuples.scale = sources_.sources[0].params.scale;
    return tuples;
  }

  template <typename E>
  void CollectAndSort(uint64_t max_offset, uint64_t tuples, Column<E>& entries, Column<E>& scratch) {
    entries.resize(0);
    entries.resize(tuples);
    E* out = entries.data();
    CollectTo(tuples, [&out](uint64_t offset, uint32_t carried) { *out++ = E::Make(offset, carried); });
    StableSortByKey(entries, scratch, std::bit_width(max_offset), [](const E& entry) { return entry.offset(); });
  }

  // Calls put(offset, what to carry) for the `tuples` tuples up to the cursors' stops and moves the cursors there.
  template <typename Put>
  void CollectTo(uint64_t tuples, Put put) {
    if (!carries_values_) {
      CollectPositions(tuples, put);
    } else if (SizeOf(sources_.cursors[0].dtype) == sizeof(uint32_t)) {
      CollectValues<uint32_t>(put);
    } else {
      CollectValues<uint16_t>(put);
    }
  }

  template <typename E>
  void FoldEntries(const Column<E>& entries, Rows& rows) {
    rows.resize(0, shape_);
    rows.resize(entries.size(), shape_);
    if (carries_values_) {
      LoadSortedValues(entries);
      rows.resize(FoldTerms(entries, rows, [](size_t i, const E&) { return i; }), shape_);
    } else if (KeepsOrigins()) {
      rows.resize(FoldByOrigin(entries, rows), shape_);
    } else {
      rows.resize(FoldTerms(entries, rows, [](size_t, const E& entry) { return entry.carried(); }), shape_);
    }
  }

  // Calls take(key, index of the tuple) for what a cursor has up to its stop, and moves it there. Calls fetch(index)
  // before each cache line of keys.
  template <typename Fetch, typename Take>
  static void ForTuples(Cursor<Key>& cursor, Fetch fetch, Take take) {
    constexpr uint64_t kLine = 64 / sizeof(Key);
    const Key* const keys = cursor.keys;
    uint64_t i = cursor.position;
    if (keys != nullptr) {
      for (; cursor.stop - i >= kLine; i += kLine) {
        fetch(i);
        for (uint64_t j = i; j < i + kLine; ++j) take(keys[j], j);
      }
      for (; i < cursor.stop; ++i) take(keys[i], i);
    } else {
      for (; i < cursor.stop; ++i) take(cursor[i], i);
    }
    cursor.position = cursor.stop;
  }

  // The buckets of the block, of which it holds the whole, in updates in words. Returns their tuples.
  uint64_t FindBuckets(const Block<Key>& block) {
    uint64_t tuples = 0;
    for (const CoarseWords* words : sources_.words) {
      if (words == nullptr) continue;
      first_bucket_ = static_cast<uint64_t>(block.first) >> words->low_bits;
      last_bucket_ = static_cast<uint64_t>(block.last) >> words->low_bits;
      tuples += words->ends[last_bucket_] - words->BeginOf(first_bucket_);
    }
    return tuples;
  }

  template <typename Bits>
  void PrefetchValues(size_t k) const {
    if (const CoarseWords* const words = sources_.WordsOf(k); words != nullptr) {
      __builtin_prefetch(words->words.data() + words->BeginOf(first_bucket_));
    } else {
      const Cursor<Key>& cursor = sources_.cursors[k];
      __builtin_prefetch(cursor.values + cursor.position * sizeof(Bits));
    }
  }

  template <typename Put>
  void CollectWords(const CoarseWords& words, uint64_t ahead, Put put) {
    constexpr uint64_t kLine = 64 / sizeof(uint64_t);
    const uint64_t* const tuples = words.words.data();
    uint64_t i = words.BeginOf(first_bucket_);
    for (uint64_t bucket = first_bucket_; bucket <= last_bucket_; ++bucket) {
      const uint64_t base = (bucket << words.low_bits) - static_cast<uint64_t>(first_);
      const uint64_t end = words.ends[bucket];
      const auto take = [&](uint64_t word) { put(base + (word >> 32), static_cast<uint32_t>(word)); };
      for (; end - i >= kLine; i += kLine) {
        __builtin_prefetch(tuples + i + ahead);
        for (uint64_t j = 0; j < kLine; ++j) take(tuples[i + j]);
      }
      for (; i < end; ++i) take(tuples[i]);
    }
  }

  // Memory is asked for beforehand, since there are more cursors than the hardware can follow.
  template <typename Bits, typename Put>
  void CollectValues(Put put) {
    const uint64_t ahead = sources_.TuplesAhead();
    for (size_t k = 0; k < sources_.cursors.size(); ++k) {
      if (k + sources_.kPrefetch < sources_.cursors.size()) PrefetchValues<Bits>(k + sources_.kPrefetch);
      if (const CoarseWords* const words = sources_.WordsOf(k); words != nullptr) {
        CollectWords(*words, ahead, put);
        continue;
      }
      Cursor<Key>& cursor = sources_.cursors[k];
      const std::byte* values = cursor.values;
      const auto fetch = [&](uint64_t i) {
        __builtin_prefetch(cursor.keys + i + ahead);
        __builtin_prefetch(values + (i + ahead) * sizeof(Bits));
      };
      ForTuples(cursor, fetch, [&](Key key, uint64_t i) {
        Bits bits;
        std::memcpy(&bits, values + i * sizeof(Bits), sizeof(bits));
        put(static_cast<Key>(key - first_), bits);
      });
    }
  }

  // terms_[i] = the term of entry i.
  template <typename E>
  void LoadSortedValues(const Column<E>& entries) {
    const size_t n = entries.size();
    const size_t value_bytes = SizeOf(sources_.cursors[0].dtype);
    values_.resize(n * value_bytes + sizeof(uint32_t));
    for (size_t i = 0; i < n; ++i) {
      const uint32_t bits = entries[i].carried();  // little-endian: the low bytes come first
      std::memcpy(values_.data() + i * value_bytes, &bits, sizeof(bits));
    }
    terms_.resize(n + kVectorSlack);
    sources_.sources[0].load(values_.data(), n, 0, n, sources_.sources[0].params, terms_.data());
  }

  template <typename Put>
  void CollectPositions(uint64_t tuples, Put put) {
    const bool weighs = shape_.key_weights != KeyWeights::kNone;
    if (columns_ == 1) terms_.resize(tuples + kVectorSlack);
    if (KeepsOrigins()) origins_.resize(tuples);
    if (weighs) weights_.resize(tuples);
    uint32_t at = 0;
    if (first_rows_ != nullptr) {
      Cursor<Key>& base = sources_.base;
      for (; base.position < base.stop; ++base.position, ++at) {
        origins_[at] = {sources_.BaseIndex(), base.position};
        if (weighs) weights_[at] = first_rows_->weights[base.position];
        put(static_cast<Key>(base.keys[base.position] - first_), at);
      }
    }
    const uint64_t ahead = sources_.TuplesAhead();
    for (size_t k = 0; k < sources_.cursors.size(); ++k) {
      const uint32_t first_at = at;
      if (const CoarseWords* const words = sources_.WordsOf(k); words != nullptr) {
        const uint64_t n = words->ends[last_bucket_] - words->BeginOf(first_bucket_);
        values_.resize(n * sizeof(uint32_t));
        std::byte* value = values_.data();
        CollectWords(*words, ahead, [&](uint64_t offset, uint32_t bits) {
          std::memcpy(value, &bits, sizeof(bits));
          value += sizeof(bits);
          put(offset, at++);
        });
        if (n > 0) sources_.LoadValues(k, values_.data(), n, terms_.data() + first_at);
      } else {
        Cursor<Key>& cursor = sources_.cursors[k];
        const uint64_t begin = cursor.position;
        const uint64_t n = cursor.stop - begin;
        // What is written behind the last term is overwritten by the next update's, or slack.
        if (columns_ == 1 && n > 0) sources_.LoadRows(k, begin, n, 1, terms_.data() + at);
        if (KeepsOrigins()) {
          for (uint64_t i = 0; i < n; ++i) origins_[at + i] = {static_cast<uint32_t>(k), begin + i};
        }
        const size_t value_bytes = columns_ == 1 ? SizeOf(cursor.dtype) : 0;  // longer rows are not read yet
        const auto fetch = [&](uint64_t i) {
          __builtin_prefetch(cursor.keys + i + ahead);
          __builtin_prefetch(cursor.values + (i + ahead) * value_bytes);
        };
        ForTuples(cursor, fetch, [&](Key key, uint64_t) { put(static_cast<Key>(key - first_), at++); });
      }
      if (weighs) std::fill_n(weights_.data() + first_at, at - first_at, sources_.sources[k].key_weight);
    }
  }

  // The usual case: at most one column, every entry one contributor. term_of(i, entry) is the place of its term.
  template <typename E, typename TermOf>
  size_t FoldTerms(const Column<E>& entries, Rows& rows, TermOf term_of) {
    const size_t n = entries.size();
    size_t row = 0;
    for (size_t i = 0; i < n; ++row) {
      const uint64_t offset = entries[i].offset();
      const size_t begin = i;
      Acc acc = Fold::kStart;
      uint64_t weight = 0;
      do {
        const size_t term = term_of(i, entries[i]);
        if (columns_ == 1) Fold::Add(acc, terms_[term]);
        if (shape_.key_weights != KeyWeights::kNone) AddWeight(shape_.key_weights, weights_[term], weight);
        ++i;
      } while (i < n && entries[i].offset() == offset);
      rows.keys[row] = static_cast<Key>(first_ + offset);
      if (columns_ == 1) rows.accs[row] = acc;
      if (shape_.counts) rows.counts[row] = static_cast<uint32_t>(i - begin);
      if (shape_.key_weights != KeyWeights::kNone) rows.weights[row] = weight;
    }
    return row;
  }

  template <typename E>
  size_t FoldByOrigin(const Column<E>& entries, Rows& rows) {
    row_terms_.resize(columns_ + kVectorSlack);
    size_t row = 0;
    for (size_t i = 0; i < entries.size(); ++row) {
      const uint64_t offset = entries[i].offset();
      rows.keys[row] = static_cast<Key>(first_ + offset);
      Acc* accs = rows.accs.data() + row * columns_;
      std::fill_n(accs, columns_, Fold::kStart);
      uint32_t count = 0;
      uint64_t weight = 0;
      for (; i < entries.size() && entries[i].offset() == offset; ++i) {
        const size_t place = entries[i].carried();
        const RowOrigin origin = origins_[place];
        if (shape_.key_weights != KeyWeights::kNone) AddWeight(shape_.key_weights, weights_[place], weight);
        if (origin.source == sources_.BaseIndex()) {
          for (size_t c = 0; c < columns_; ++c) Fold::Combine(accs[c], first_rows_->accs[origin.row * columns_ + c]);
          if (shape_.counts) count += first_rows_->counts[origin.row];
          continue;
        }
        if (columns_ == 1) {
          Fold::Add(*accs, terms_[place]);
        } else if (columns_ > 1) {
          sources_.LoadRows(origin.source, origin.row, 1, columns_, row_terms_.data());
          for (size_t c = 0; c < columns_; ++c) Fold::Add(accs[c], row_terms_[c]);
        }
        ++count;
      }
      if (shape_.counts) rows.counts[row] = count;
      if (shape_.key_weights != KeyWeights::kNone) rows.weights[row] = weight;
    }
    return row;
  }

  Sources<Key, Fold>& sources_;
  const Rows* const first_rows_;  // merged before; null: none, or they are not collected
  const RowShape shape_;
  const size_t columns_;
  const bool carries_values_;
  // What has been collected.
  Key first_ = 0;
  uint64_t first_bucket_ = 0;  // of updates in words
  uint64_t last_bucket_ = 0;
  bool is_narrow_ = true;
  SlotSort slots_;
  Column<Entry> entries_;
  Column<Entry> entry_scratch_;
  Column<WideEntry> wide_entries_;
  Column<WideEntry> wide_entry_scratch_;
  Column<std::byte> values_;  // carried values in sorted order
  Column<Term> terms_;        // of the collected tuples: in sorted order if carried, else as collected
  Column<Term> row_terms_;
  Column<uint64_t> weights_;  // of the tuples as collected, as of KeyWeights
  Column<RowOrigin> origins_;
  std::optional<RowSums> row_sums_;  // null: what is folded is not that
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_SORT_FOLD_H_
