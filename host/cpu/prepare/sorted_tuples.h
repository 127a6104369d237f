// Tuples of one update in order.
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

// The tuples in ascending order of key, duplicates in order of occurrence: (key − smallest) · 2^position_bits +
// position in one word where that fits, which is mostly so and less to move, else in two.
template <typename Key>
class SortedTuples {
 public:
  SortedTuples(absl::Span<const Key> keys, bool sorted) {
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
    } else {
      pairs_.resize(n);
      for (size_t i = 0; i < n; ++i) pairs_[i] = {static_cast<Key>(keys[i] - smallest_), static_cast<uint32_t>(i)};
      Column<Pair> scratch;
      if (!sorted) StableSortByKey(pairs_, scratch, key_bits, [](const Pair& pair) { return pair.offset; });
    }
  }

  // Calls use(tuples) with what has size(), key(i) and position(i).
  template <typename Use>
  auto With(Use use) const {
    return in_words_ ? use(Words{*this}) : use(Pairs{*this});
  }

 private:
  struct Pair {
    Key offset;
    uint32_t position;
  };
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

// What SortedTuples takes: tuples, and a copy of them to sort.
inline uint64_t SortedTuplesBytes(const TensorSpec& spec, uint64_t num_keys) {
  const int key_bits = spec.dimension == 0 ? 64 : static_cast<int>(std::bit_width(spec.dimension - 1));
  const bool in_words = key_bits + static_cast<int>(std::bit_width(num_keys)) <= 64;
  return SaturatingMultiply(num_keys, 2 * (in_words || HasNarrowKeys(spec) ? sizeof(uint64_t) : 2 * sizeof(uint64_t)));
}

// Rows in sorted order, as they are; kRowBytes is their size, or 0 where only `row_bytes` tells.
template <size_t kRowBytes, typename Tuples>
void GatherValues(const Tuples& tuples, const std::byte* values, size_t row_bytes, std::byte* out) {
  const size_t bytes = kRowBytes != 0 ? kRowBytes : row_bytes;
  for (size_t i = 0; i < tuples.size(); ++i) {
    std::memcpy(out + i * bytes, values + tuples.position(i) * bytes, bytes);
  }
}

template <typename Tuples>
void GatherValues(const Tuples& tuples, const std::byte* values, size_t row_bytes, Column<std::byte>& out) {
  out.resize(tuples.size() * row_bytes);
  switch (row_bytes) {
    case 2:
      return GatherValues<2>(tuples, values, row_bytes, out.data());
    case 4:
      return GatherValues<4>(tuples, values, row_bytes, out.data());
    case 8:
      return GatherValues<8>(tuples, values, row_bytes, out.data());
    default:
      return GatherValues<0>(tuples, values, row_bytes, out.data());
  }
}

// The keys, duplicates too. Returns whether there are any.
template <typename Key, typename Tuples>
bool GatherKeys(const Tuples& tuples, Column<Key>& out) {
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
