// Coarse order of an unsorted update: by the leading bits of the keys only.
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

// A merge reads an update key range by key range. Inside one range the table fold and the sort fold accept tuples in
// any order. So an update need not be sorted completely: one pass distributes its tuples among 1024 buckets of equal
// key ranges, and merges start and end their blocks at bucket boundaries. The pass takes a fraction of a sort's time.
//
//   leading bits (10)      low bits (`low_bits`)
//   bucket number          any order within the bucket
//
// One thing remains to be checked: that no key is repeated, since repeated keys of one update must be folded before the
// update's weight is applied. RepeatFinder checks it bucket by bucket.
namespace sparseagg::cpu {
namespace internal {

// Leading bits that choose the bucket. With 1024 buckets, the cache lines at which buckets grow fit the L2 cache.
inline constexpr int kBucketBits = kTiny ? 3 : 10;
inline constexpr size_t kNumBuckets = size_t{1} << kBucketBits;

// Search for a repeated key within one bucket. A table of bytes marks the keys seen, by their low bits where the table
// can have a byte for each, else by a hash of them. Not thread-safe; one object serves all buckets of an update.
template <typename Key>
class RepeatFinder {
 public:
  explicit RepeatFinder(int low_bits) : low_bits_(low_bits) {}

  // Returns: whether two of the keys key_at(0) … key_at(n − 1) are equal. Requires: they differ in their low bits only.
  // Cost: O(n); a radix sort if many hashes collide, or for more than kMaxHashed keys whose table would be too large.
  template <typename KeyAt>
  bool HasRepeat(size_t n, KeyAt key_at) {
    if (low_bits_ > kMaxTableBits && n > kMaxHashed) return HasEqualNeighbours(n, key_at);
    // A hash table of at least 16 bytes a key: fewer than one key in 16 collides by chance.
    const int bits =
        std::min(low_bits_, std::clamp(static_cast<int>(std::bit_width(n)) + 4, kMinTableBits, kMaxTableBits));
    if (const size_t had = seen_.size(), wanted = size_t{1} << bits; had < wanted) {
      seen_.resize(wanted);
      std::fill(seen_.begin() + had, seen_.end(), uint8_t{0});
    }
    // Each call has its own mark, so that the table is cleared only every 255 calls.
    if (++mark_ == 0) {
      std::fill(seen_.begin(), seen_.end(), uint8_t{0});
      mark_ = 1;
    }
    return bits == low_bits_ ? HasLowBitsTwice(n, key_at) : HasHashTwice(n, key_at, bits);
  }

 private:
  static constexpr int kMinTableBits = 13;  // a quarter of an L1 cache
  static constexpr int kMaxTableBits = 17;
  static constexpr size_t kMaxHashed = 8192;  // with more keys, resolving collisions takes longer than sorting

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
      // More collisions than chance explains: adversarial keys. Comparing each with all earlier keys would be
      // quadratic.
      if (++num_marked > n / 16 + 32) return HasEqualNeighbours(n, key_at);
      size_t same = 0;  // no early exit, so that the loop is vectorised
      for (size_t j = 0; j < i; ++j) same += key_at(j) == key_at(i) ? 1 : 0;
      if (same > 0) return true;
    }
    return false;
  }

  // Sorts the keys and compares neighbours: the slow case that no key pattern makes slower.
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
  Column<uint8_t> seen_;  // mark_ where a key of the current call fell
};

// Prefetches `bytes` of memory for writing.
inline void PrefetchForWriting(const void* memory, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const std::byte*>(memory) + i, 1);
}

// Counts the keys of each bucket.
// Returns: the position of each bucket's first tuple.
//
// Also calls prefetch(begin, end) for all positions of the output, in ascending order: the scatter that follows writes
// to kNumBuckets places in turn, which the hardware does not prefetch, and this pass only reads, so it has time for it.
template <typename Key, typename Prefetch>
std::array<uint32_t, kNumBuckets> BucketBegins(absl::Span<const Key> keys, int low_bits, Prefetch prefetch) {
  std::array<uint32_t, kNumBuckets> begins{};
  constexpr size_t kBatch = 64;
  for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
    const size_t end = std::min(begin + kBatch, keys.size());
    prefetch(begin, end);
    for (size_t i = begin; i < end; ++i) ++begins[static_cast<size_t>(keys[i] >> low_bits)];
  }
  std::exclusive_scan(begins.begin(), begins.end(), begins.begin(), 0u);
  return begins;
}

// Returns: whether any key is repeated, for keys in bucket order whose buckets end at `ends`.
template <typename Key, typename KeyAt>
bool HasRepeatInAnyBucket(const std::array<uint32_t, kNumBuckets>& ends, int low_bits, KeyAt key_at) {
  RepeatFinder<Key> finder(low_bits);
  size_t begin = 0;
  for (const uint32_t end : ends) {
    // Captures by value: the finder writes bytes, which for the compiler may alias anything captured by reference.
    if (finder.HasRepeat(end - begin, [key_at, begin](size_t i) { return key_at(begin + i); })) return true;
    begin = end;
  }
  return false;
}

// Moves each tuple to the next free place of its bucket. kRowBytes: size of a row if known at compile time, else 0.
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

// Returns: how many low bits of a key below `num_rows` (0: all of uint64) the coarse order ignores. 0: there are too
// few keys, and OrderCoarsely must not be called.
inline int CoarseBits(uint64_t num_rows) {
  return std::max(0, static_cast<int>(std::bit_width(num_rows - 1)) - internal::kBucketBits);
}

// Copies keys and their rows of `row_bytes` (may be 0) into ascending order of key >> low_bits, stably. Requires: all
// keys are below num_rows, and low_bits = CoarseBits(num_rows) > 0, so that key >> low_bits < kNumBuckets.
// Returns: false if a key is repeated, or if there are too few or too many tuples for a coarse order; the outputs are
// then unspecified.
// Cost: O(n), two passes over the keys, one over the rows.
template <typename Key>
bool OrderCoarsely(absl::Span<const Key> keys, const std::byte* values, size_t row_bytes, int low_bits,
                   Column<Key>& out_keys, Column<std::byte>& out_values) {
  const size_t n = keys.size();
  if (n < CurrentTuning().min_coarse_tuples || n > UINT32_MAX) return false;
  out_keys.resize(n);
  out_values.resize(n * row_bytes);
  auto next = internal::BucketBegins(keys, low_bits, [&](size_t begin, size_t end) {
    internal::PrefetchForWriting(out_keys.data() + begin, (end - begin) * sizeof(Key));
    if (row_bytes <= sizeof(uint64_t)) {
      internal::PrefetchForWriting(out_values.data() + begin * row_bytes, (end - begin) * row_bytes);
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
  const Key* const ordered = out_keys.data();  // `next` now holds the ends of the buckets
  return !internal::HasRepeatInAnyBucket<Key>(next, low_bits, [ordered](size_t i) { return ordered[i]; });
}

// Tuples of 64-bit keys and 32-bit values in coarse order, each packed into one word. The word holds the low bits of
// the key; the leading bits are the number of the tuple's bucket. This takes a third less memory than keys and values
// apart, and the scatter writes to half as many cache lines at a time. Without it, workload D runs at half
// the speed.
struct CoarseWords {
  static constexpr int kMaxLowBits = 32;

  int low_bits = 0;
  std::array<uint32_t, internal::kNumBuckets> ends{};  // position behind the last tuple of each bucket
  Column<uint64_t> words;                              // low bits of the key in the upper half, value in the lower

  // Cost: O(log number of buckets).
  uint64_t KeyAt(uint64_t index) const {
    const auto bucket = static_cast<uint64_t>(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
    return bucket << low_bits | words[index] >> 32;
  }
  uint64_t BeginOf(uint64_t bucket) const { return bucket == 0 ? 0 : ends[bucket - 1]; }

  // Calls use(key, value) for every tuple, in order.
  template <typename Use>
  void ForEach(Use use) const {
    uint64_t i = 0;
    for (uint64_t bucket = 0; bucket < ends.size(); ++bucket) {
      for (; i < ends[bucket]; ++i) use(bucket << low_bits | words[i] >> 32, static_cast<uint32_t>(words[i]));
    }
  }
};

// The same as OrderCoarsely, into words.
// Returns: false in addition if low_bits > CoarseWords::kMaxLowBits.
inline bool OrderCoarselyInWords(absl::Span<const uint64_t> keys, const std::byte* values, int low_bits,
                                 CoarseWords& out) {
  const size_t n = keys.size();
  if (n < CurrentTuning().min_coarse_tuples || n > UINT32_MAX || low_bits > CoarseWords::kMaxLowBits) return false;
  out.low_bits = low_bits;
  out.words.resize(n);
  uint64_t* const words = out.words.data();
  out.ends = internal::BucketBegins(keys, low_bits, [words](size_t begin, size_t end) {
    internal::PrefetchForWriting(words + begin, (end - begin) * sizeof(uint64_t));
  });
  const uint64_t low_mask = (uint64_t{1} << low_bits) - 1;
  uint32_t* const next = out.ends.data();  // begins become ends as the buckets fill
  for (size_t i = 0; i < n; ++i) {
    __builtin_prefetch(values + i * sizeof(uint32_t) + 1024);
    uint32_t value;
    std::memcpy(&value, values + i * sizeof(value), sizeof(value));
    words[next[static_cast<size_t>(keys[i] >> low_bits)]++] = (keys[i] & low_mask) << 32 | value;
  }
  return !internal::HasRepeatInAnyBucket<uint64_t>(out.ends, low_bits, [words](size_t i) { return words[i] >> 32; });
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_COARSE_ORDER_H_
