// Gathering of the entries of a range of keys from all updates.
#ifndef SPARSEAGG_HOST_CPU_ORDER_ENTRY_GATHERER_H_
#define SPARSEAGG_HOST_CPU_ORDER_ENTRY_GATHERER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "host/base/column.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/merge/tuple_sort.h"
#include "host/cpu/order/entries.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/rows/wire_value.h"

namespace sparseagg::cpu {

// Gatherer of entries, owned by one thread of a merge. Values are widened to T: float for float32 and narrower, double,
// or int64_t. Two ways, for the same entries:
//   GatherDense   for dense keys: counts the entries of each key of a window, then puts each to its place
//   GatherSparse  for sparse keys: sorts the tuples of a block by key, as SortFold does
// Call either for ascending blocks or windows without gaps, or SkipTo between. Not thread-safe.
template <typename Key, typename T>
class EntryGatherer {
 public:
  // `input`: without a base, and without packed updates.
  explicit EntryGatherer(const MergeInput<Key, SumFloat>& input)
      : input_(input), columns_(input.shape.columns), sources_(input) {}

  void SkipTo(Key key) { sources_.SkipTo(key); }

  // Errors: RESOURCE_EXHAUSTED: 2^32 entries or more.
  absl::Status GatherDense(Key first, uint64_t span, Entries<Key, T>& out) {
    const uint64_t tuples = sources_.Advance(static_cast<Key>(first + (span - 1)));
    if (IsFull(span, tuples) && out.CanBeFull(sources_.cursors.size())) return GatherFull(first, span, out);
    places_.resize(span);
    std::fill_n(places_.data(), span, 0);
    for (const Cursor<Key>& cursor : sources_.cursors) CountKeys(cursor, first);
    out.Begin(span);
    for (uint64_t slot = 0; slot < span; ++slot) out.AddKey(static_cast<Key>(first + slot), places_[slot]);
    if (tuples > UINT32_MAX || !out.Arrange()) return TooMany(tuples);
    const bool is_mixed = !out.all_grouped();
    if (is_mixed) steps_.resize(span);
    for (size_t i = 0; i < out.size(); ++i) {
      const auto slot = static_cast<Key>(out.key(i) - first);
      places_[slot] = out.place(i);
      if (is_mixed) steps_[slot] = static_cast<uint8_t>(out.step(i));
    }
    for (size_t k = 0; k < sources_.cursors.size(); ++k) {
      Cursor<Key>& cursor = sources_.cursors[k];
      WithWire(cursor.dtype, [&](auto wire) {
        is_mixed ? Place<decltype(wire), true>(k, first, out) : Place<decltype(wire), false>(k, first, out);
      });
      cursor.position = cursor.stop;
    }
    return absl::OkStatus();
  }

  absl::Status GatherSparse(const Block<Key>& block, Entries<Key, T>& out) {
    const uint64_t tuples = sources_.Advance(block.last);
    if (tuples > UINT32_MAX) return TooMany(tuples);
    sort_.Sort(block.first, block.last, tuples, /*ascending=*/true,
               [&](auto put) { Collect(block.first, tuples, put); });
    return Group(out);
  }

 private:
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
          if constexpr (std::is_same_v<T, double>) step(double{});  // a lane of float never meets one
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

  // Returns: whether every update has every key of the window, and lists none.
  bool IsFull(uint64_t span, uint64_t tuples) const {
    if (span > UINT32_MAX || tuples != span * sources_.cursors.size()) return false;
    return std::all_of(sources_.cursors.begin(), sources_.cursors.end(),
                       [](const Cursor<Key>& cursor) { return cursor.keys == nullptr; });
  }

  // GatherDense of such a window: of each update, kGroupLanes values after the other are a plane of their group. Some
  // groups of one update at a time: fewer would leave the prefetcher too many places to follow, more the cache.
  absl::Status GatherFull(Key first, uint64_t span, Entries<Key, T>& out) {
    constexpr uint64_t kValues = 4 * kGroupLanes;
    const size_t count = sources_.cursors.size();
    if (!out.ArrangeFull(first, static_cast<uint32_t>(span), static_cast<uint32_t>(count))) {
      return TooMany(span * count);
    }
    T* const values = out.ValuesAt(0, /*is_grouped=*/false);  // the place is the index of the value
    for (uint64_t begin = 0; begin < span; begin += kValues) {
      const uint64_t end = std::min(begin + kValues, span);
      for (size_t k = 0; k < count; ++k) {
        const Cursor<Key>& cursor = sources_.cursors[k];
        WithWire(cursor.dtype, [&](auto wire) {
          for (uint64_t i = begin; i < end; i += kGroupLanes) {
            T* const plane = values + (i / kGroupLanes * count + k) * kGroupLanes;
            const std::byte* const from = cursor.values + (cursor.position + i) * sizeof(wire);
            const uint64_t lanes = std::min<uint64_t>(kGroupLanes, end - i);
            for (uint64_t lane = 0; lane < lanes; ++lane) plane[lane] = Load<decltype(wire)>(from, lane);
          }
        });
      }
    }
    for (Cursor<Key>& cursor : sources_.cursors) cursor.position = cursor.stop;
    return absl::OkStatus();
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

  // Puts the rows of update k to their places. kMixed: not all keys are in groups.
  template <typename Wire, bool kMixed>
  void Place(size_t k, Key first, Entries<Key, T>& out) {
    const Cursor<Key>& cursor = sources_.cursors[k];
    const bool moves_on = !out.keeps_weights();  // else the weights need the places, too
    if (columns_ > 1) {
      ForSlots(cursor, first, [&](uint64_t i, Key slot) {
        const uint32_t place = places_[slot];
        const uint32_t step = kMixed ? steps_[slot] : uint32_t{kGroupLanes};
        if (moves_on) places_[slot] = place + step;
        PlaceRow<Wire>(cursor.values, i, place, step > 1, out);
      });
    } else if (kMixed || !moves_on) {
      T* const values = out.ValuesAt(0, /*is_grouped=*/false);  // the place is the index of the value
      ForSlots(cursor, first, [&](uint64_t i, Key slot) {
        const uint32_t place = places_[slot];
        if (moves_on) places_[slot] = place + (kMixed ? steps_[slot] : uint32_t{kGroupLanes});
        values[place] = Load<Wire>(cursor.values, i);
      });
    } else {
      PlaceValues<Wire>(cursor, input_.updates[k]->coarse_bits == 0, first, out.ValuesAt(0, /*is_grouped=*/false));
    }
    if (moves_on) return;
    double* const weights = out.weights();
    uint32_t* const sources = out.keeps_sources() ? out.sources() : nullptr;
    ForSlots(cursor, first, [&](uint64_t, Key slot) {
      const uint32_t place = places_[slot];
      places_[slot] = place + (kMixed ? steps_[slot] : uint32_t{kGroupLanes});
      weights[place] = cursor.scale.weight;
      if (sources != nullptr) sources[place] = static_cast<uint32_t>(k);
    });
  }

  // Calls step(index, slot) for each tuple of the window.
  template <typename Step>
  static void ForSlots(const Cursor<Key>& cursor, Key first, Step step) {
    if (cursor.keys == nullptr) {
      for (uint64_t i = cursor.position; i < cursor.stop; ++i) step(i, static_cast<Key>(cursor.first + i - first));
      return;
    }
    const Key* const keys = cursor.keys;
    for (uint64_t i = cursor.position; i < cursor.stop; ++i) step(i, static_cast<Key>(keys[i] - first));
  }

  // Returns: whether kGroupLanes places are one behind another.
  static bool IsPlane(const uint32_t* places) {
    uint32_t differs = 0;
    for (uint32_t lane = 0; lane < kGroupLanes; ++lane) differs |= places[lane] ^ (places[0] + lane);
    return differs == 0;
  }

  // Puts single values to their places, where all keys are in groups. Consecutive keys whose entries fill a plane are
  // put at once.
  template <typename Wire>
  void PlaceValues(const Cursor<Key>& cursor, bool is_sorted, Key first, T* values) {
    uint32_t* const places = places_.data();
    const std::byte* const from = cursor.values;
    const uint64_t stop = cursor.stop;
    for (uint64_t i = cursor.position; i < stop;) {
      const auto slot = static_cast<Key>(cursor[i] - first);
      const uint32_t place = places[slot];
      const bool fits = is_sorted && place % kGroupLanes == 0 && stop - i >= kGroupLanes;
      if (fits && cursor[i + kGroupLanes - 1] - cursor[i] == kGroupLanes - 1 && IsPlane(places + slot)) {
        for (size_t lane = 0; lane < kGroupLanes; ++lane) values[place + lane] = Load<Wire>(from, i + lane);
        for (size_t lane = 0; lane < kGroupLanes; ++lane) places[slot + lane] += kGroupLanes;
        i += kGroupLanes;
        continue;
      }
      places[slot] = place + kGroupLanes;
      values[place] = Load<Wire>(from, i);
      ++i;
    }
  }

  template <typename Wire>
  void PlaceRow(const std::byte* values, uint64_t row, uint32_t place, bool is_grouped, Entries<Key, T>& out) {
    T* const to = out.ValuesAt(place, is_grouped);
    if (!is_grouped) {
      for (size_t c = 0; c < columns_; ++c) to[c] = Load<Wire>(values, row * columns_ + c);
    } else {
      for (size_t c = 0; c < columns_; ++c) to[c * kGroupLanes] = Load<Wire>(values, row * columns_ + c);
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

  absl::Status Group(Entries<Key, T>& out) {
    const Column<TupleWord>& entries = sort_.words();
    const size_t n = entries.size();
    out.Begin(n);
    for (size_t i = 0; i < n;) {
      const size_t begin = i;
      const uint64_t offset = entries[begin].offset();
      while (i < n && entries[i].offset() == offset) ++i;
      out.AddKey(sort_.KeyOf(entries[begin]), static_cast<uint32_t>(i - begin));
    }
    if (!out.Arrange()) return TooMany(n);
    const TupleWord* entry = entries.data();
    for (size_t i = 0; i < out.size(); ++i) {
      const uint32_t step = out.step(i);
      uint32_t place = out.place(i);
      for (uint32_t p = 0; p < out.count(i); ++p, ++entry, place += step) {
        const Origin origin = origins_[entry->payload()];
        WithWire(sources_.cursors[origin.source].dtype,
                 [&](auto wire) { PlaceRow<decltype(wire)>(origin.row, 0, place, step > 1, out); });
        if (out.keeps_weights()) out.weights()[place] = input_.updates[origin.source]->weight;
        if (out.keeps_sources()) out.sources()[place] = origin.source;
      }
    }
    return absl::OkStatus();
  }

  const MergeInput<Key, SumFloat>& input_;
  const size_t columns_;
  Sources<Key, SumFloat> sources_;
  // GatherDense: of each slot, the number of its entries, then the place of its next one, and how far the places are
  // apart.
  Column<uint32_t> places_;
  Column<uint8_t> steps_;
  // GatherSparse.
  Column<Origin> origins_;
  TupleSort<Key> sort_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_ENTRY_GATHERER_H_
