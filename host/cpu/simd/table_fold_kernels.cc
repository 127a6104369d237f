#include <type_traits>

#include "host/cpu/simd/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/simd/table_fold_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/cpu/simd/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

constexpr size_t kMaxLanes = HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(double);

// A counter of one byte. Not uint8_t: the compiler must assume that a character type aliases the keys.
enum class Count8 : uint8_t {};

HWY_INLINE void CountOne(NoCount*, uint64_t) {}
HWY_INLINE void CountOne(Count8* counts, uint64_t slot) {
  counts[slot] = static_cast<Count8>(static_cast<unsigned>(counts[slot]) + 1);
}
HWY_INLINE void CountOne(uint16_t* counts, uint64_t slot) { ++counts[slot]; }
HWY_INLINE void CountOne(uint32_t* counts, uint64_t slot) { ++counts[slot]; }

// Counting of contributors.
template <class Count>
struct Tally {
  Count* counts;
  HWY_INLINE void Add(uint64_t slot) const { CountOne(counts, slot); }
};
// Counting of contributors, and sums of their weights.
template <class Count>
struct WeightTally {
  Count* counts;
  double* weights;
  double weight;
  HWY_INLINE void Add(uint64_t slot) const {
    CountOne(counts, slot);
    weights[slot] += weight;
  }
};

// The functions below are not inlined: with all combinations of types inlined, the compiler optimises none of them
// well.

// Adds the tuples of one cursor, one value a key. The terms of a vector of tuples are computed at once. They are added
// one by one: AVX-512's gather and scatter measured slower than scalar loads and stores. A cursor's keys are distinct,
// so the additions of one vector do not depend on each other.
// Returns: the position behind the last tuple added.
template <DType kDType, class Key, class Tally>
HWY_NOINLINE uint64_t AddKeys(const Cursor<Key>& cursor, const TableWindow<Key>& window, const FloatTerms& terms,
                              double* HWY_RESTRICT table, const Tally tally) {
  const Key first = window.first;
  const Key last = window.last;
  const size_t ahead = window.tuples_ahead;
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  const Key* HWY_RESTRICT keys = cursor.keys;
  HWY_ALIGN double buffer[kMaxLanes] = {};
  const auto add = [&](uint64_t i, size_t j) HWY_ATTR {
    const auto slot = static_cast<uint64_t>(static_cast<Key>(keys[i + j] - first));
    table[slot] += buffer[j];
    tally.Add(slot);
  };
  uint64_t i = cursor.position;
  for (; i + lanes < cursor.end && keys[i + lanes - 1] <= last; i += lanes) {
    __builtin_prefetch(keys + i + ahead);
    __builtin_prefetch(cursor.values + (i + ahead) * SizeOf(kDType));
    hn::Store(terms(LoadDoubles<kDType>(cursor.values, i, lanes)), d, buffer);
    for (size_t j = 0; j < lanes; ++j) add(i, j);
  }
  if (i < cursor.end && keys[i] <= last) {
    const size_t n = HWY_MIN(lanes, cursor.end - i);
    hn::Store(terms(LoadDoubles<kDType>(cursor.values, i, n)), d, buffer);
    size_t j = 0;
    do {
      add(i, j);
      ++j;
    } while (j < n && keys[i + j] <= last);
    i += j;
  }
  return i;
}

// Adds the terms of values [index, index + count) to accs[0], accs[1], … Prefetches `ahead` values ahead, if not 0.
template <DType kDType>
HWY_NOINLINE void AddRun(const std::byte* values, uint64_t index, uint64_t count, size_t ahead, const FloatTerms& terms,
                         double* HWY_RESTRICT accs) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  uint64_t c = 0;
  for (; c + lanes <= count; c += lanes) {
    if (ahead != 0) __builtin_prefetch(values + (index + c + ahead) * SizeOf(kDType));
    hn::StoreU(hn::Add(hn::LoadU(d, accs + c), terms(LoadDoubles<kDType>(values, index + c, lanes))), d, accs + c);
  }
  if (c == count) return;
  HWY_ALIGN double buffer[kMaxLanes] = {};
  hn::Store(terms(LoadDoubles<kDType>(values, index + c, count - c)), d, buffer);
  for (size_t j = 0; c < count; ++c, ++j) accs[c] += buffer[j];
}

// Rows up to this size are prefetched by hand, since there are more cursors than the hardware prefetcher can follow.
// Longer rows it follows by itself.
constexpr size_t kRowBytesAhead = 1024;

// Adds the tuples of one cursor, rows of several values.
// Returns: the position behind the last tuple added.
template <DType kDType, class Key, class Tally>
HWY_NOINLINE uint64_t AddRows(const Cursor<Key>& cursor, const TableWindow<Key>& window, const FloatTerms& terms,
                              double* HWY_RESTRICT table, const Tally tally) {
  const size_t row_bytes = window.columns * SizeOf(kDType);
  const size_t fetched = row_bytes <= kRowBytesAhead ? row_bytes : 0;
  uint64_t i = cursor.position;
  for (; i < cursor.end && cursor.keys[i] <= window.last; ++i) {
    const std::byte* ahead = cursor.values + i * row_bytes + kRowBytesAhead;
    for (size_t byte = 0; byte < fetched; byte += 64) __builtin_prefetch(ahead + byte);
    const auto slot = static_cast<uint64_t>(static_cast<Key>(cursor.keys[i] - window.first));
    AddRun<kDType>(cursor.values, i * window.columns, window.columns, 0, terms, table + slot * window.columns);
    tally.Add(slot);
  }
  return i;
}

template <DType kDType, class Key, class Tally>
HWY_INLINE uint64_t AddCursor(const Cursor<Key>& cursor, const TableWindow<Key>& window, const FloatTerms& terms,
                              double* table, const Tally& tally) {
  if (cursor.keys == nullptr) {
    const uint64_t rows = cursor.CountTo(window.last);
    if (rows == 0) return cursor.position;
    const uint64_t slot = cursor[cursor.position] - window.first;
    AddRun<kDType>(cursor.values, cursor.position * window.columns, rows * window.columns, window.tuples_ahead, terms,
                   table + slot * window.columns);
    for (uint64_t i = 0; i < rows; ++i) tally.Add(slot + i);
    return cursor.position + rows;
  }
  if (window.columns > 1) return AddRows<kDType>(cursor, window, terms, table, tally);
  return AddKeys<kDType>(cursor, window, terms, table, tally);
}

// With many small updates, each visit of a cursor begins at cold cache lines and ends before the hardware prefetcher
// starts. So the first lines of keys and values are prefetched some cursors ahead.
constexpr size_t kCursorsAhead = 8;
constexpr size_t kLinesAhead = 3;

template <class Key>
HWY_INLINE void PrefetchFirst(const Cursor<Key>& cursor, size_t columns) {
  if (cursor.keys != nullptr) {
    const std::byte* const keys = cursor.KeyMemory();
    const size_t lines = cursor.unchecked ? 2 * kLinesAhead : kLinesAhead;
    for (size_t line = 0; line < lines; ++line) __builtin_prefetch(keys + 64 * line);
  }
  const std::byte* values = cursor.values + cursor.position * SizeOf(cursor.dtype) * columns;
  for (size_t line = 0; line < kLinesAhead; ++line) __builtin_prefetch(values + 64 * line);
}

// Unchecked keys are copied to 32-bit ones piece by piece: small ones, so that the reads of keys and of values overlap.
constexpr size_t kPiece = 128;

// Copies to `to` the first of `count` keys that strictly ascend, begin at `first` or later, and end at `last` or
// before. What is copied is what was compared: each key is read once for both. Returns: their number. Requires: room
// for kMaxLanes more at `to`.
HWY_NOINLINE size_t TakeAscending(const uint64_t* HWY_RESTRICT keys, size_t count, uint64_t first, uint64_t last,
                                  size_t ahead, uint32_t* HWY_RESTRICT to) {
  const Longs d;
  const Words narrow;
  const size_t lanes = hn::Lanes(d);
  if (count == 0) return 0;
  uint64_t previous = keys[0];
  if (previous < first || previous > last) return 0;
  to[0] = static_cast<uint32_t>(previous);
  const auto least = hn::Set(d, first);
  const auto span = hn::Set(d, last - first);
  size_t i = 1;
  for (; i + lanes <= count; i += lanes) {
    __builtin_prefetch(keys + i + ahead);
    const auto key = hn::LoadU(d, keys + i);
    const auto before = hn::LoadU(d, keys + i - 1);
    const auto bad = hn::Or(hn::Gt(hn::Sub(key, least), span), hn::Not(hn::Gt(key, before)));
    hn::StoreU(hn::TruncateTo(narrow, key), narrow, to + i);
    const intptr_t at = hn::FindFirstTrue(d, bad);
    if (at >= 0) return i + static_cast<size_t>(at);
  }
  for (previous = to[i - 1]; i < count; ++i) {
    const uint64_t key = keys[i];
    if (key <= previous || key > last) return i;
    to[i] = static_cast<uint32_t>(key);
    previous = key;
  }
  return i;
}

template <class Key, class TallyOf>
HWY_INLINE uint64_t AddCursors(const TableWindow<Key>& window, TallyOf tally_of) {
  uint32_t copied[kPiece + kMaxLanes];
  Cursor<Key> piece;  // some tuples of a cursor with unchecked keys, with copied keys
  uint64_t tuples = 0;
  for (size_t k = 0; k < window.num_cursors; ++k) {
    if (k + kCursorsAhead < window.num_cursors) PrefetchFirst(window.cursors[k + kCursorsAhead], window.columns);
    Cursor<Key>& cursor = window.cursors[k];
    const FloatTerms terms(cursor.scale);
    const auto tally = tally_of(cursor.scale.weight);
    const Cursor<Key>* from = &cursor;
    uint64_t taken = 0;
    do {
      if (cursor.unchecked) {
        const auto* const keys = reinterpret_cast<const uint64_t*>(cursor.KeyMemory());
        from = &piece;
        piece.keys = reinterpret_cast<const Key*>(copied);
        piece.values = cursor.values + cursor.position * window.columns * SizeOf(cursor.dtype);
        piece.end = TakeAscending(keys, HWY_MIN(kPiece, cursor.end - cursor.position), window.first, window.last_row,
                                  window.tuples_ahead, copied);
      }
      const uint64_t position = WithFloatType(cursor.dtype, [&](auto type) HWY_ATTR {
        return AddCursor<decltype(type)::value>(*from, window, terms, window.table, tally);
      });
      taken = position - from->position;
      tuples += taken;
      cursor.position += taken;
    } while (cursor.unchecked && taken == kPiece);
  }
  return tuples;
}

template <class Key>
HWY_INLINE uint64_t AddToTableT(const TableWindow<Key>& window) {
  return WithColumns(window, [&](auto count, auto is_weighed) HWY_ATTR {
    using Count = std::conditional_t<std::is_same_v<decltype(count), uint8_t>, Count8, decltype(count)>;
    auto* const counts = static_cast<Count*>(window.counts);
    return AddCursors(window, [&](double weight) HWY_ATTR {
      if constexpr (decltype(is_weighed)::value) {
        return WeightTally<Count>{counts, window.weights, weight};
      } else {
        return Tally<Count>{counts};
      }
    });
  });
}

uint64_t AddToTable32(const TableWindow<uint32_t>& window) { return AddToTableT(window); }
uint64_t AddToTable64(const TableWindow<uint64_t>& window) { return AddToTableT(window); }

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(AddToTable32);
HWY_EXPORT(AddToTable64);

uint64_t AddToTable(const TableWindow<uint32_t>& window) { return HWY_DYNAMIC_DISPATCH(AddToTable32)(window); }
uint64_t AddToTable(const TableWindow<uint64_t>& window) { return HWY_DYNAMIC_DISPATCH(AddToTable64)(window); }

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
