// Input of a merge: updates and base, and the cursors of a thread over them.
#ifndef SPARSEAGG_HOST_CPU_MERGE_SOURCES_H_
#define SPARSEAGG_HOST_CPU_MERGE_SOURCES_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "host/cpu/prepare/coarse_order.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/prepare/terms.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/simd/kernels.h"
#include "host/cpu/tuning.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Updates and base of one merge. Borrowed from the accumulator; shared by all threads of the merge.
template <typename Key, typename Fold>
struct MergeInput {
  const TensorSpec* spec = nullptr;
  RowShape shape;
  std::vector<const CpuUpdate*> updates;        // in canonical order
  const FoldedRows<Key, Fold>* base = nullptr;  // rows merged earlier; null: none
  // Counts the tuples that table folds have taken; null unless an update has unchecked keys. Of those, folds leave what
  // is not in order, so that fewer are taken than there are.
  std::atomic<uint64_t>* taken = nullptr;
  bool base_is_first = false;  // the order matters, so the base's rows must be folded before the updates'

  // Adds an update, and its repeats right behind it.
  void Add(const CpuUpdate& update) {
    updates.push_back(&update);
    if (update.repeats != nullptr) updates.push_back(update.repeats.get());
  }
};

// Reader of single keys of a source: an array, a run, packed words or unchecked keys, which may change at any time.
template <typename Key>
struct KeyReader {
  const Key* keys = nullptr;  // null: the run first, first + 1, …
  Key first = 0;
  const CoarseWords* words = nullptr;   // if not null, the keys are in these words
  const uint64_t* unchecked = nullptr;  // if not null, the keys are these, of which none counts as beyond `bounds`
  KeyBounds bounds = {};
  Key operator[](uint64_t index) const {
    if (words != nullptr) return static_cast<Key>(words->KeyAt(index));
    if (unchecked != nullptr) {
      return static_cast<Key>(std::clamp<uint64_t>(unchecked[index], bounds.smallest, bounds.largest));
    }
    return keys != nullptr ? keys[index] : static_cast<Key>(first + index);
  }
  // Returns: the first and the last of `count` keys.
  std::pair<Key, Key> Ends(uint64_t count) const {
    if (unchecked != nullptr) return {static_cast<Key>(bounds.smallest), static_cast<Key>(bounds.largest)};
    return {(*this)[0], (*this)[count - 1]};
  }
};

template <typename Key>
KeyReader<Key> ReaderOf(const CpuUpdate& update) {
  if (const auto* run = std::get_if<KeyRun>(&update.keys)) return {nullptr, static_cast<Key>(run->first)};
  if (update.unchecked.has_value()) {
    return {nullptr, 0, nullptr, std::get<absl::Span<const uint64_t>>(update.keys).data(), *update.unchecked};
  }
  return {std::get<absl::Span<const Key>>(update.keys).data(), 0, update.words};
}

// All sources that one thread of a merge reads. Owned by a BlockMerger, shared with its table fold and its sort fold.
// Not thread-safe: each thread has its own cursors.
template <typename Key, typename Fold>
struct Sources {
  using Term = typename Fold::Term;

  // Members of an update that are needed only when it has tuples in a block. Apart from the cursors, to keep those
  // small.
  struct Source {
    LoadTerms<Term> load = nullptr;
    TermParams params;
    typename FoldedRows<Key, Fold>::WeightSum key_weight = {};
  };

  explicit Sources(const MergeInput<Key, Fold>& input) {
    if (input.base != nullptr) {
      base.keys = input.base->keys.data();
      base.end = input.base->size();
    }
    cursors.reserve(input.updates.size());
    sources.reserve(input.updates.size());
    for (const CpuUpdate* update : input.updates) {
      Cursor<Key> cursor;
      if (update->words == nullptr) {
        const KeyReader<Key> reader = ReaderOf<Key>(*update);
        cursor.keys = reader.keys;
        cursor.first = reader.first;
        if (reader.unchecked != nullptr) {
          cursor.unchecked = true;
          cursor.keys = reinterpret_cast<const Key*>(reader.unchecked);
        }
        cursor.end = update->num_keys;
        cursor.values = update->values;
      } else {
        words.resize(input.updates.size());
        words[cursors.size()] = update->words;
      }
      cursor.dtype = update->dtype;
      Source source;
      source.load = TermLoader<Term>(update->dtype);
      source.params = MakeTermParams(*input.spec, {update->factor, update->weight});
      cursor.scale = source.params.value_scale;
      if constexpr (std::is_same_v<Fold, SumFloat>) {
        source.key_weight = update->weight;
      } else {
        SumBinned<WideBinnedSum>::Add(source.key_weight, update->weight);
      }
      cursors.push_back(cursor);
      sources.push_back(source);
    }
  }

  // Converts `rows` rows of update k, from row `begin` on, to terms.
  // Requires: kVectorSlack at `terms`.
  void LoadRows(size_t k, uint64_t begin, size_t rows, size_t columns, Term* terms) const {
    const Cursor<Key>& cursor = cursors[k];
    sources[k].load(cursor.values, cursor.end * columns, begin * columns, rows * columns, sources[k].params, terms);
  }

  // Converts `rows` values of update k, which are no longer where the update has them, to terms.
  void LoadValues(size_t k, const std::byte* values, size_t rows, Term* terms) const {
    sources[k].load(values, rows, 0, rows, sources[k].params, terms);
  }

  // Moves the stops of the updates' cursors behind `last`.
  // Returns: the number of tuples up to there.
  uint64_t Advance(Key last) {
    uint64_t tuples = 0;
    for (size_t k = 0; k < cursors.size(); ++k) {
      if (k + kPrefetch < cursors.size()) PrefetchKeys(cursors[k + kPrefetch], 1);
      tuples += cursors[k].Advance(last);
    }
    return tuples;
  }

  // Returns: the number of tuples ahead of each cursor to prefetch.
  uint64_t TuplesAhead() const {
    const Tuning& tuning = CurrentTuning();
    return std::min(tuning.tuples_ahead, tuning.total_tuples_ahead / std::max<uint64_t>(1, cursors.size()));
  }

  // Returns: the index of the base, where sources are numbered: behind the updates.
  uint32_t BaseIndex() const { return static_cast<uint32_t>(cursors.size()); }

  // Returns: the packed tuples of update k; null if it is not packed.
  const CoarseWords* WordsOf(size_t k) const { return words.empty() ? nullptr : words[k]; }

  // Moves all cursors to their first key ≥ to.
  void SkipTo(Key to) {
    base.SkipTo(to);
    for (size_t k = 0; k < cursors.size(); ++k) {
      if (k + kPrefetch < cursors.size()) PrefetchKeys(cursors[k + kPrefetch], kSkipLines);
      cursors[k].SkipTo(to);
    }
  }

  static void PrefetchKeys(const Cursor<Key>& cursor, size_t lines) {
    if (cursor.keys == nullptr) return;
    const std::byte* const keys = cursor.KeyMemory();
    for (size_t line = 0; line < lines; ++line) __builtin_prefetch(keys + 64 * line);
  }

  static constexpr size_t kPrefetch = 8;  // number of cursors ahead whose memory is prefetched
  // Cache lines of keys that a cursor usually reads when it skips another thread's block.
  static constexpr size_t kSkipLines = 4;

  Cursor<Key> base;  // at its end if there is no base
  // One element for each update, in canonical order:
  std::vector<Cursor<Key>> cursors;
  std::vector<Source> sources;
  // Packed tuples (null: not packed); empty if no update is packed. The cursor of a packed update has no tuples.
  std::vector<const CoarseWords*> words;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_SOURCES_H_
