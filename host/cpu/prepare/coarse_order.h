// Orders the tuples of an update by the leading bits of their keys only, which is all that a merge needs.
#ifndef SPARSEAGG_HOST_CPU_PREPARE_COARSE_ORDER_H_
#define SPARSEAGG_HOST_CPU_PREPARE_COARSE_ORDER_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "absl/types/span.h"
#include "host/base/column.h"
#include "host/cpu/prepare/radix_sort.h"
#include "host/cpu/tuning.h"

namespace sparseagg::cpu {
namespace internal {

// Leading bits by which keys are told apart: the buckets' ends, in keys and in values, then fit the L2 cache.
inline constexpr int kBucketBits = kTiny ? 3 : 10;
inline constexpr size_t kNumBuckets = size_t{1} << kBucketBits;

// Looks for keys that are repeated among keys of one bucket, with a byte for each of their low bits or of their hashes.
template <typename Key>
class RepeatFinder {
 public:
  explicit RepeatFinder(int low_bits) : low_bits_(low_bits) {}

  // Whether there is one among n keys, of which key_at(i) tells the low bits.
  template <typename KeyAt>
  bool HasRepeat(size_t n, KeyAt key_at) {
    if (low_bits_ > kMaxTableBits && n > kMaxHashed) return HasEqualNeighbours(n, key_at);
    // At 16 bytes a key or more, fewer than one in 16 finds its byte marked by chance.
    const int bits =
        std::min(low_bits_, std::clamp(static_cast<int>(std::bit_width(n)) + 4, kMinTableBits, kMaxTableBits));
    if (const size_t had = seen_.size(), wanted = size_t{1} << bits; had < wanted) {
      seen_.resize(wanted);
      std::fill(seen_.begin() + had, seen_.end(), uint8_t{0});
    }
    if (++mark_ == 0) {  // no byte holds the mark of this call
      std::fill(seen_.begin(), seen_.end(), uint8_t{0});
      mark_ = 1;
    }
    return bits == low_bits_ ? HasLowBitsTwice(n, key_at) : HasHashTwice(n, key_at, bits);
  }

 private:
  static constexpr int kMinTableBits = 13;  // a quarter of an L1 cache
  static constexpr int kMaxTableBits = 17;
  static constexpr size_t kMaxHashed = 8192;  // above, comparing with all keys before takes longer than sorting

  template <typename KeyAt>
  bool HasLowBitsTwice(size_t n, KeyAt key_at) {
    const size_t mask = (size_t{1} << low_bits_) - 1;
    const uint8_t mark = mark_;
    uint8_t* const seen = seen_.data();
    bool repeats = false;
    for (size_t i = 0; i < n; ++i) {
      const size_t at = key_at(i) & mask;
      repeats |= seen[at] == mark;
      seen[at] = mark;
    }
    return repeats;
  }

  template <typename KeyAt>
  bool HasHashTwice(size_t n, KeyAt key_at, int bits) {
    const uint8_t mark = mark_;
    uint8_t* const seen = seen_.data();
    size_t num_marked = 0;
    for (size_t i = 0; i < n; ++i) {
      const size_t at = (uint64_t{key_at(i)} * 0x9e3779b97f4a7c15u) >> (64 - bits);
      if (seen[at] != mark) {
        seen[at] = mark;
        continue;
      }
      // Twice what chance explains, and some: the keys were made to meet, each of them at the price of all before.
      if (++num_marked > n / 16 + 32) return HasEqualNeighbours(n, key_at);
      size_t same = 0;  // all are compared, since that vectorises
      for (size_t j = 0; j < i; ++j) same += key_at(j) == key_at(i) ? 1 : 0;
      if (same > 0) return true;
    }
    return false;
  }

  template <typename KeyAt>
  bool HasEqualNeighbours(size_t n, KeyAt key_at) {
    sorted_.resize(n);
    const Key low_mask = static_cast<Key>((Key{1} << low_bits_) - 1);
    for (size_t i = 0; i < n; ++i) sorted_[i] = static_cast<Key>(key_at(i) & low_mask);
    StableSortByKey(sorted_, scratch_, low_bits_, [](Key key) { return key; });
    return std::adjacent_find(sorted_.begin(), sorted_.end()) != sorted_.end();
  }

  const int low_bits_;
  Column<Key> sorted_;
  Column<Key> scratch_;
  uint8_t mark_ = 0;
  Column<uint8_t> seen_;  // mark_ where a key of this call was
};

inline void Fetch(const void* memory, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const std::byte*>(memory) + i, 1);
}

// Counts the keys of each bucket, and turns the counts into the positions where the buckets begin. Meanwhile asks for
// the memory that is to be written here and there in the order of its lines: fetch(begin, end) is to, for some tuples.
template <typename Key, typename Fetch>
std::array<uint32_t, kNumBuckets> BeginsOfBuckets(absl::Span<const Key> keys, int low_bits, Fetch fetch) {
  std::array<uint32_t, kNumBuckets> begins{};
  constexpr size_t kBatch = 64;
  for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
    const size_t end = std::min(begin + kBatch, keys.size());
    fetch(begin, end);
    for (size_t i = begin; i < end; ++i) ++begins[static_cast<size_t>(keys[i] >> low_bits)];
  }
  std::exclusive_scan(begins.begin(), begins.end(), begins.begin(), 0u);
  return begins;
}

// Whether a key is repeated, of keys in buckets that end at `ends`.
template <typename Key, typename KeyAt>
bool HasRepeatInABucket(const std::array<uint32_t, kNumBuckets>& ends, int low_bits, KeyAt key_at) {
  RepeatFinder<Key> finder(low_bits);
  size_t begin = 0;
  for (const uint32_t end : ends) {
    // By value: the bytes that the finder marks might, for all the compiler knows, be what a reference refers to.
    if (finder.HasRepeat(end - begin, [key_at, begin](size_t i) { return key_at(begin + i); })) return true;
    begin = end;
  }
  return false;
}

template <size_t kRowBytes, typename Key>
void Scatter(absl::Span<const Key> keys, const std::byte* values, size_t row_bytes, int low_bits, uint32_t* next,
             Key* out_keys, std::byte* out_values) {
  const size_t bytes = kRowBytes != 0 ? kRowBytes : row_bytes;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (kRowBytes != 0) __builtin_prefetch(values + i * kRowBytes + 1024);
    const size_t at = next[static_cast<size_t>(keys[i] >> low_bits)]++;
    out_keys[at] = keys[i];
    if (bytes > 0) std::memcpy(out_values + at * bytes, values + i * bytes, bytes);
  }
}

}  // namespace internal

// The low bits of keys below `dimension` (0: any) that a coarse order leaves out; 0: there is no such order.
inline int CoarseBits(uint64_t dimension) {
  return std::max(0, static_cast<int>(std::bit_width(dimension - 1)) - internal::kBucketBits);
}

// Copies keys and rows of `row_bytes` each, which may be 0, into ascending order of key >> low_bits, stably. One pass
// and hardly a comparison, so it takes a fraction of a sort's time. Returns false, with the outputs in any order, where
// that is not enough: keys that come more than once.
template <typename Key>
bool OrderCoarsely(absl::Span<const Key> keys, const std::byte* values, size_t row_bytes, int low_bits,
                   Column<Key>& out_keys, Column<std::byte>& out_values) {
  const size_t n = keys.size();
  if (n < CurrentTuning().min_coarse_tuples || n > UINT32_MAX) return false;
  out_keys.resize(n);
  out_values.resize(n * row_bytes);
  auto next = internal::BeginsOfBuckets(keys, low_bits, [&](size_t begin, size_t end) {
    internal::Fetch(out_keys.data() + begin, (end - begin) * sizeof(Key));
    if (row_bytes <= sizeof(uint64_t)) {
      internal::Fetch(out_values.data() + begin * row_bytes, (end - begin) * row_bytes);
    }
  });
  const auto scatter = [&]<size_t kRowBytes>(std::integral_constant<size_t, kRowBytes>) {
    internal::Scatter<kRowBytes>(keys, values, row_bytes, low_bits, next.data(), out_keys.data(), out_values.data());
  };
  switch (row_bytes) {
    case 2:
      scatter(std::integral_constant<size_t, 2>{});
      break;
    case 4:
      scatter(std::integral_constant<size_t, 4>{});
      break;
    case 8:
      scatter(std::integral_constant<size_t, 8>{});
      break;
    default:
      scatter(std::integral_constant<size_t, 0>{});
  }
  const Key* const ordered = out_keys.data();
  return !internal::HasRepeatInABucket<Key>(next, low_bits, [ordered](size_t i) { return ordered[i]; });
}

// Tuples in coarse order with 32 bits of value and no more than 32 low bits of key, each in one word: a third less
// memory than wide keys and values take, and half of the lines that ordering them writes to at a time.
struct CoarseWords {
  static constexpr int kMaxLowBits = 32;

  int low_bits = 0;
  std::array<uint32_t, internal::kNumBuckets> ends{};  // of the buckets, which are numbered by the keys' leading bits
  Column<uint64_t> words;                              // low bits of the key in the upper half, value in the lower

  uint64_t KeyAt(uint64_t index) const {
    const auto bucket = static_cast<uint64_t>(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
    return bucket << low_bits | words[index] >> 32;
  }
  uint64_t BeginOf(uint64_t bucket) const { return bucket == 0 ? 0 : ends[bucket - 1]; }

  // Calls use(key, value) for the tuples in order.
  template <typename Use>
  void ForEach(Use use) const {
    uint64_t i = 0;
    for (uint64_t bucket = 0; bucket < ends.size(); ++bucket) {
      for (; i < ends[bucket]; ++i) use(bucket << low_bits | words[i] >> 32, static_cast<uint32_t>(words[i]));
    }
  }
};

// As OrderCoarsely, of values of 32 bits.
inline bool OrderCoarselyInWords(absl::Span<const uint64_t> keys, const std::byte* values, int low_bits,
                                 CoarseWords& out) {
  const size_t n = keys.size();
  if (n < CurrentTuning().min_coarse_tuples || n > UINT32_MAX || low_bits > CoarseWords::kMaxLowBits) return false;
  out.low_bits = low_bits;
  out.words.resize(n);
  uint64_t* const words = out.words.data();
  out.ends = internal::BeginsOfBuckets(keys, low_bits, [words](size_t begin, size_t end) {
    internal::Fetch(words + begin, (end - begin) * sizeof(uint64_t));
  });
  const uint64_t low_mask = (uint64_t{1} << low_bits) - 1;
  uint32_t* const next = out.ends.data();
  for (size_t i = 0; i < n; ++i) {
    __builtin_prefetch(values + i * sizeof(uint32_t) + 1024);
    uint32_t value;
    std::memcpy(&value, values + i * sizeof(value), sizeof(value));
    words[next[static_cast<size_t>(keys[i] >> low_bits)]++] = (keys[i] & low_mask) << 32 | value;
  }
  return !internal::HasRepeatInABucket<uint64_t>(out.ends, low_bits, [words](size_t i) { return words[i] >> 32; });
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_COARSE_ORDER_H_
