// Entries: the values of each key of a block, gathered from all updates.
#ifndef SPARSEAGG_HOST_CPU_ORDER_ENTRIES_H_
#define SPARSEAGG_HOST_CPU_ORDER_ENTRIES_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "host/base/column.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/bucket_sort.h"
#include "host/cpu/merge/merge_input.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/order/lanes.h"
#include "host/cpu/prepare/radix_sort.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/rows/wire_value.h"

namespace sparseagg::cpu {

// Entries of a range of keys, grouped by key: row-major values, in canonical order of submissions within a key.
template <typename Key, typename T>
struct Entries {
  Column<Key> keys;          // ascending, distinct
  Column<uint32_t> begins;   // of each key's first entry; and one more, the number of entries
  Column<T> values;          // entries × columns; kLaneSlack more may be read
  Column<uint32_t> sources;  // of each entry, the index of its update; empty unless the weights matter

  uint32_t CountOf(size_t i) const { return begins[i + 1] - begins[i]; }
};

// Gatherer of entries, owned by one thread of a merge. Values are widened to T: float for float32 and narrower, double,
// or int64_t. Two ways, for the same entries:
//   GatherDense   for dense keys: counts the entries of each key of a window, then puts each to its place
//   GatherSparse  for sparse keys: sorts the tuples of a block by key, as SortFold does
// Call either for ascending blocks or windows without gaps, or SkipTo between. Not thread-safe.
template <typename Key, typename T>
class EntryGatherer {
 public:
  // `input`: without a base, and without packed updates.
  EntryGatherer(const MergeInput<Key, SumFloat>& input, bool wants_sources)
      : columns_(input.shape.columns), wants_sources_(wants_sources), sources_(input) {}

  void SkipTo(Key key) { sources_.SkipTo(key); }

  // Errors: RESOURCE_EXHAUSTED: 2^32 entries or more.
  absl::Status GatherDense(Key first, uint64_t span, Entries<Key, T>& out) {
    const Key last = static_cast<Key>(first + (span - 1));
    const uint64_t tuples = sources_.Advance(last);
    if (tuples > UINT32_MAX) return TooMany(tuples);
    places_.resize(span);
    std::fill_n(places_.data(), span, 0);
    for (const Cursor<Key>& cursor : sources_.cursors) CountKeys(cursor, first);
    Resize(std::min<uint64_t>(span, tuples), tuples, out);
    size_t row = 0;
    uint32_t at = 0;
    for (uint64_t slot = 0; slot < span; ++slot) {
      const uint32_t count = places_[slot];
      places_[slot] = at;
      if (count == 0) continue;
      out.keys[row] = static_cast<Key>(first + slot);
      out.begins[row++] = at;
      at += count;
    }
    CutKeys(row, tuples, out);
    for (size_t k = 0; k < sources_.cursors.size(); ++k) {
      Cursor<Key>& cursor = sources_.cursors[k];
      WithWire(cursor.dtype, [&](auto wire) { Place<decltype(wire)>(k, first, out); });
      cursor.position = cursor.stop;
    }
    return absl::OkStatus();
  }

  absl::Status GatherSparse(const Block<Key>& block, Entries<Key, T>& out) {
    const uint64_t max_offset = static_cast<uint64_t>(block.last) - block.first;
    const uint64_t tuples = sources_.Advance(block.last);
    if (tuples > UINT32_MAX) return TooMany(tuples);
    if (std::bit_width(max_offset) > 32) {
      Sort(block.first, max_offset, tuples, wide_entries_, wide_scratch_);
      Group(block.first, wide_entries_, out);
    } else if (bucket_sort_.ShouldTry(max_offset, tuples)) {
      BucketSort::Writer writer = bucket_sort_.Begin(max_offset, tuples);
      Collect(block.first, tuples, [&writer](uint64_t offset, uint32_t index) { writer.Put(offset, index); });
      bucket_sort_.Finish(/*ascending=*/true, words_);
      Group(block.first, words_, out);
    } else {
      Sort(block.first, max_offset, tuples, words_, word_scratch_);
      Group(block.first, words_, out);
    }
    return absl::OkStatus();
  }

 private:
  // A tuple of a block with more than 2^32 keys, for which TupleWord has too few bits.
  struct WideEntry {
    static WideEntry Make(uint64_t offset, uint32_t payload) { return {offset, payload}; }
    uint64_t offset() const { return offset_; }
    uint32_t payload() const { return payload_; }
    uint64_t offset_;
    uint32_t payload_;
  };
  // Where an entry's row is.
  struct Origin {
    const std::byte* row;
    uint32_t source;
  };

  static absl::Status TooMany(uint64_t tuples) {
    return absl::ResourceExhaustedError(absl::StrCat(tuples, " tuples in one block of keys"));
  }

  // Calls step with a value of the wire type of `dtype`.
  template <typename Step>
  static void WithWire(DType dtype, Step step) {
    if constexpr (std::is_same_v<T, int64_t>) {
      return dtype == DType::kInt32 ? step(int32_t{}) : step(int64_t{});
    } else {
      switch (dtype) {
        case DType::kFloat16:
          return step(Float16{});
        case DType::kBFloat16:
          return step(BFloat16{});
        case DType::kFloat64:
          if constexpr (std::is_same_v<T, double>) step(double{});  // a float lane never meets one
          return;
        default:
          return step(float{});
      }
    }
  }

  template <typename Wire>
  static T Load(const std::byte* values, uint64_t index) {
    if constexpr (std::is_same_v<T, int64_t>) {
      return static_cast<int64_t>(LoadWire<Wire>(values, index));
    } else {
      return static_cast<T>(Widen(LoadWire<Wire>(values, index)));
    }
  }

  void Resize(size_t keys, size_t entries, Entries<Key, T>& out) {
    out.keys.resize(keys);
    out.begins.resize(keys + 1);
    out.values.resize(entries * columns_ + kLaneSlack);
    if (wants_sources_) out.sources.resize(entries);
  }
  static void CutKeys(size_t keys, uint64_t entries, Entries<Key, T>& out) {
    out.keys.resize(keys);
    out.begins.resize(keys + 1);
    out.begins[keys] = static_cast<uint32_t>(entries);
  }

  void CountKeys(const Cursor<Key>& cursor, Key first) {
    uint32_t* const counts = places_.data();
    if (cursor.keys != nullptr) {
      for (uint64_t i = cursor.position; i < cursor.stop; ++i) ++counts[static_cast<Key>(cursor.keys[i] - first)];
    } else if (cursor.position < cursor.stop) {
      uint32_t* const run = counts + static_cast<Key>(cursor[cursor.position] - first);
      for (uint64_t i = 0; i < cursor.stop - cursor.position; ++i) ++run[i];
    }
  }

  // Puts the rows of update k to their places.
  template <typename Wire>
  void Place(size_t k, Key first, Entries<Key, T>& out) {
    const Cursor<Key>& cursor = sources_.cursors[k];
    const uint64_t ahead = sources_.TuplesAhead();
    uint32_t* const places = places_.data();
    T* const values = out.values.data();
    const auto source = static_cast<uint32_t>(k);
    for (uint64_t i = cursor.position; i < cursor.stop; ++i) {
      const uint32_t place = places[static_cast<Key>(cursor[i] - first)]++;
      if (columns_ == 1) {
        if (i % 16 == 0) __builtin_prefetch(cursor.values + (i + ahead) * sizeof(Wire));
        values[place] = Load<Wire>(cursor.values, i);
      } else {
        T* const row = values + place * columns_;
        for (size_t c = 0; c < columns_; ++c) row[c] = Load<Wire>(cursor.values, i * columns_ + c);
      }
      if (wants_sources_) out.sources[place] = source;
    }
  }

  // Calls put(offset, index of the entry's origin) for each tuple.
  template <typename Put>
  void Collect(Key first, uint64_t tuples, Put put) {
    origins_.resize(tuples);
    uint32_t index = 0;
    for (size_t k = 0; k < sources_.cursors.size(); ++k) {
      Cursor<Key>& cursor = sources_.cursors[k];
      const size_t row_bytes = columns_ * SizeOf(cursor.dtype);
      for (uint64_t i = cursor.position; i < cursor.stop; ++i) {
        origins_[index] = {cursor.values + i * row_bytes, static_cast<uint32_t>(k)};
        put(static_cast<Key>(cursor[i] - first), index++);
      }
      cursor.position = cursor.stop;
    }
  }

  template <typename Entry>
  void Sort(Key first, uint64_t max_offset, uint64_t tuples, Column<Entry>& entries, Column<Entry>& scratch) {
    entries.resize(tuples);
    Entry* next = entries.data();
    Collect(first, tuples, [&next](uint64_t offset, uint32_t index) { *next++ = Entry::Make(offset, index); });
    StableSortByKey(entries, scratch, std::bit_width(max_offset), [](const Entry& entry) { return entry.offset(); });
  }

  template <typename Entry>
  void Group(Key first, const Column<Entry>& entries, Entries<Key, T>& out) {
    const size_t n = entries.size();
    Resize(n, n, out);
    size_t row = 0;
    for (size_t i = 0; i < n; ++i) {
      if (i == 0 || entries[i].offset() != entries[i - 1].offset()) {
        out.keys[row] = static_cast<Key>(first + entries[i].offset());
        out.begins[row++] = static_cast<uint32_t>(i);
      }
      const Origin origin = origins_[entries[i].payload()];
      if (wants_sources_) out.sources[i] = origin.source;
      WithWire(sources_.cursors[origin.source].dtype, [&](auto wire) {
        for (size_t c = 0; c < columns_; ++c) out.values[i * columns_ + c] = Load<decltype(wire)>(origin.row, c);
      });
    }
    CutKeys(row, n, out);
  }

  const size_t columns_;
  const bool wants_sources_;
  Sources<Key, SumFloat> sources_;
  Column<uint32_t> places_;  // GatherDense: of each slot, the number of its entries, then where its next one goes
  // GatherSparse.
  Column<Origin> origins_;
  BucketSort bucket_sort_;
  Column<TupleWord> words_;
  Column<TupleWord> word_scratch_;
  Column<WideEntry> wide_entries_;
  Column<WideEntry> wide_scratch_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_ENTRIES_H_
