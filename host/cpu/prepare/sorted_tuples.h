// Complete sort of the tuples of one update.
#ifndef SPARSEAGG_HOST_CPU_PREPARE_SORTED_TUPLES_H_
#define SPARSEAGG_HOST_CPU_PREPARE_SORTED_TUPLES_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "host/base/column.h"
#include "host/base/saturating.h"
#include "host/cpu/prepare/radix_sort.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// The (key, position) pairs of one update in ascending order of key; repeated keys in order of occurrence. Rows are not
// moved: positions say where they are. A pair takes one word, (key − smallest) · 2^position_bits + position, if that
// fits 64 bits, as it mostly does, else two. Immutable.
//
//   const SortedTuples<Key> sorted(keys, /*sorted=*/false);
//   sorted.With([&](const auto& tuples) {
//     for (size_t i = 0; i < tuples.size(); ++i) Use(tuples.key(i), values[tuples.position(i)]);
//   });
template <typename Key>
class SortedTuples {
 public:
  // `sorted`: the keys ascend already, but not strictly. `keeps_scratch`: whether the sort's memory is kept for the
  // next columns, or goes back to the system. Requires: at least one key, and fewer than 2^32.
  SortedTuples(absl::Span<const Key> keys, bool sorted, bool keeps_scratch = true) {
    const size_t n = keys.size();
    const auto [smallest, largest] = std::minmax_element(keys.begin(), keys.end());
    smallest_ = *smallest;
    const int key_bits = std::bit_width(static_cast<Key>(*largest - smallest_));
    position_bits_ = std::bit_width(n - 1);
    in_words_ = key_bits + position_bits_ <= 64;
    if (in_words_) {
      words_.resize(n);
      for (size_t i = 0; i < n; ++i) {
        words_[i] = uint64_t{static_cast<Key>(keys[i] - smallest_)} << position_bits_ | i;
      }
      Column<uint64_t> scratch;
      if (!sorted) {
        StableSortByKey(words_, scratch, key_bits, [this](uint64_t word) { return word >> position_bits_; });
      }
      if (!keeps_scratch) Release(scratch);
    } else {
      pairs_.resize(n);
      for (size_t i = 0; i < n; ++i) pairs_[i] = {static_cast<Key>(keys[i] - smallest_), static_cast<uint32_t>(i)};
      Column<Pair> scratch;
      if (!sorted) StableSortByKey(pairs_, scratch, key_bits, [](const Pair& pair) { return pair.offset; });
      if (!keeps_scratch) Release(scratch);
    }
  }

  size_t size() const { return in_words_ ? words_.size() : pairs_.size(); }
  size_t memory_bytes() const { return words_.size() * sizeof(uint64_t) + pairs_.size() * sizeof(Pair); }
  // Returns: the number of distinct keys. Cost: O(n).
  size_t CountKeys() const {
    return With([](const auto& tuples) {
      size_t keys = 1;
      for (size_t i = 1; i < tuples.size(); ++i) keys += tuples.key(i) != tuples.key(i - 1) ? 1 : 0;
      return keys;
    });
  }

  // Returns: the first tuple from `index` on that begins a key; size() if there is none. Cost: O(log n).
  size_t NextKey(size_t index) const {
    if (index == 0 || index >= size()) return std::min(index, size());
    return With([index](const auto& tuples) {
      const Key before = tuples.key(index - 1);
      size_t begin = index;
      size_t end = tuples.size();
      while (begin < end) {
        const size_t middle = begin + (end - begin) / 2;
        tuples.key(middle) == before ? begin = middle + 1 : end = middle;
      }
      return begin;
    });
  }

  // Calls use(tuples), where `tuples` has size(), key(i) and position(i).
  // Returns: the value of `use`.
  template <typename Use>
  auto With(Use use) const {
    return in_words_ ? use(Words{*this}) : use(Pairs{*this});
  }

 private:
  struct Pair {
    Key offset;
    uint32_t position;
  };
  template <typename Entry>
  static void Release(Column<Entry>& scratch) {
    scratch.clear();
    scratch.Trim();
  }
  struct Words {
    const SortedTuples& of;
    size_t size() const { return of.words_.size(); }
    Key key(size_t i) const { return static_cast<Key>((of.words_[i] >> of.position_bits_) + of.smallest_); }
    size_t position(size_t i) const { return of.words_[i] & ((uint64_t{1} << of.position_bits_) - 1); }
  };
  struct Pairs {
    const SortedTuples& of;
    size_t size() const { return of.pairs_.size(); }
    Key key(size_t i) const { return static_cast<Key>(of.pairs_[i].offset + of.smallest_); }
    size_t position(size_t i) const { return of.pairs_[i].position; }
  };

  Key smallest_ = 0;
  int position_bits_ = 0;
  bool in_words_ = false;
  Column<uint64_t> words_;
  Column<Pair> pairs_;
};

// Returns: an upper bound of the memory of SortedTuples: the pairs, and a copy of them while they are sorted.
// Saturates.
inline uint64_t SortedTuplesBytes(const TensorSpec& spec, uint64_t num_keys) {
  const int key_bits = spec.num_rows == 0 ? 64 : static_cast<int>(std::bit_width(spec.num_rows - 1));
  const bool in_words = key_bits + static_cast<int>(std::bit_width(num_keys)) <= 64;
  return SaturatingMultiply(num_keys, 2 * (in_words || HasNarrowKeys(spec) ? sizeof(uint64_t) : 2 * sizeof(uint64_t)));
}

// Copies rows in sorted order. kRowBytes: size of a row if known at compile time, else 0.
template <size_t kRowBytes, typename Tuples>
void CopyValuesInOrder(const Tuples& tuples, const std::byte* values, size_t row_bytes, std::byte* out) {
  const size_t bytes = kRowBytes != 0 ? kRowBytes : row_bytes;
  for (size_t i = 0; i < tuples.size(); ++i) {
    std::memcpy(out + i * bytes, values + tuples.position(i) * bytes, bytes);
  }
}

template <typename Tuples>
void CopyValuesInOrder(const Tuples& tuples, const std::byte* values, size_t row_bytes, Column<std::byte>& out) {
  out.resize(tuples.size() * row_bytes);
  switch (row_bytes) {
    case 2:
      return CopyValuesInOrder<2>(tuples, values, row_bytes, out.data());
    case 4:
      return CopyValuesInOrder<4>(tuples, values, row_bytes, out.data());
    case 8:
      return CopyValuesInOrder<8>(tuples, values, row_bytes, out.data());
    default:
      return CopyValuesInOrder<0>(tuples, values, row_bytes, out.data());
  }
}

// Copies keys in sorted order, repeated ones too.
// Returns: whether a key is repeated.
template <typename Key, typename Tuples>
bool CopyKeysInOrder(const Tuples& tuples, Column<Key>& out) {
  const size_t n = tuples.size();
  out.resize(n);
  Key* keys = out.data();
  bool repeats = false;
  Key before = tuples.key(0);
  keys[0] = before;
  for (size_t i = 1; i < n; ++i) {
    const Key key = tuples.key(i);
    repeats |= key == before;
    keys[i] = key;
    before = key;
  }
  return repeats;
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_SORTED_TUPLES_H_
