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
// One thing remains: repeated keys of one update must be folded before the update's weight is applied. RepeatFinder
// finds them bucket by bucket, and their tuples are taken out.
namespace sparseagg::cpu {
namespace internal {

// Leading bits that choose the bucket. With 1024 buckets, the cache lines at which buckets grow fit the L2 cache.
inline constexpr int kBucketBits = kTiny ? 3 : 10;
inline constexpr size_t kNumBuckets = size_t{1} << kBucketBits;

// Search for repeated keys within one bucket. A table of bytes marks the keys seen, by their low bits where the table
// can have a byte for each, else by a hash of them. Not thread-safe; one object serves all buckets of an update.
template <typename Key>
class RepeatFinder {
 public:
  explicit RepeatFinder(int low_bits) : low_bits_(low_bits) {}

  // Returns: whether two of the keys key_at(0) … key_at(n − 1) are equal. Requires: they differ in their low bits only.
  // Cost: O(n); a radix sort if many hashes collide, or for more than kMaxHashed keys whose table would be too large.
  template <typename KeyAt>
  bool HasRepeat(size_t n, KeyAt key_at) {
    // A hash table of at least 16 bytes a key: fewer than one key in 16 collides by chance.
    const int hash_bits = std::clamp(static_cast<int>(std::bit_width(n)) + 4, kMinTableBits, kMaxTableBits);
    bits_ = low_bits_ <= kDirectBits ? low_bits_ : std::min(low_bits_, hash_bits);
    if (const size_t had = seen_.size(), wanted = size_t{1} << bits_; had < wanted) {
      seen_.resize(wanted);
      std::fill(seen_.begin() + had, seen_.end(), uint8_t{0});
    }
    // Each call has marks of its own, so that the table is cleared only every 63 calls.
    mark_ = static_cast<uint8_t>(mark_ + 4);
    if (mark_ == 0) {
      std::fill(seen_.begin(), seen_.end(), uint8_t{0});
      mark_ = 4;
    }
    if (low_bits_ > kMaxTableBits && n > kMaxHashed) return HasEqualNeighbours(n, key_at);
    return bits_ == low_bits_ ? HasLowBitsTwice(n, key_at) : HasHashTwice(n, key_at);
  }

  // Returns: whether `key` may be repeated. True of all repeated keys, and of few others.
  // Requires: the last HasRepeat has returned true, and `key` is one of its keys.
  bool MayRepeat(Key key) const { return seen_[PlaceOf(key)] == mark_ + kTwice; }

 private:
  static constexpr int kMinTableBits = 13;  // a quarter of an L1 cache
  static constexpr int kMaxTableBits = 17;
  static constexpr int kDirectBits = 15;      // an L1 cache: no hash is needed, however few keys there are
  static constexpr uint8_t kTwice = 2;        // to be added to a call's mark
  static constexpr size_t kMaxHashed = 8192;  // with more keys, resolving collisions takes longer than sorting

  static size_t HashOf(Key key, int bits) { return (uint64_t{key} * 0x9e3779b97f4a7c15u) >> (64 - bits); }
  size_t PlaceOf(Key key) const { return bits_ == low_bits_ ? key & ((size_t{1} << bits_) - 1) : HashOf(key, bits_); }

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
    if (!repeats) return false;
    for (size_t i = 0; i < n; ++i) {  // counts each key's places, up to two
      const size_t at = key_at(i) & mask;
      seen[at] = static_cast<uint8_t>(seen[at] + (seen[at] < mark + kTwice ? 1 : 0));
    }
    return true;
  }

  template <typename KeyAt>
  bool HasHashTwice(size_t n, KeyAt key_at) {
    const int bits = bits_;
    const uint8_t mark = mark_;
    uint8_t* const seen = seen_.data();
    size_t num_marked = 0;
    bool repeats = false;
    for (size_t i = 0; i < n; ++i) {
      const size_t at = HashOf(key_at(i), bits);
      if (seen[at] < mark) {
        seen[at] = mark;
        continue;
      }
      // More collisions than chance explains: adversarial keys. Comparing each with all earlier keys would be
      // quadratic.
      if (++num_marked > n / 16 + 32) return HasEqualNeighbours(n, key_at);
      size_t same = 0;  // no early exit, so that the loop is vectorised
      for (size_t j = 0; j < i; ++j) same += key_at(j) == key_at(i) ? 1 : 0;
      if (same == 0) continue;
      repeats = true;
      seen[at] = static_cast<uint8_t>(mark + kTwice);
    }
    return repeats;
  }

  // Sorts the keys and compares neighbours: the slow case that no key pattern makes slower.
  template <typename KeyAt>
  bool HasEqualNeighbours(size_t n, KeyAt key_at) {
    sorted_.resize(n);
    const Key low_mask = static_cast<Key>((Key{1} << low_bits_) - 1);
    const Key leading = static_cast<Key>(key_at(0) & ~low_mask);
    for (size_t i = 0; i < n; ++i) sorted_[i] = static_cast<Key>(key_at(i) & low_mask);
    StableSortByKey(sorted_, scratch_, low_bits_, [](Key key) { return key; });
    const auto first = std::adjacent_find(sorted_.begin(), sorted_.end());
    for (auto at = first; at != sorted_.end(); at = std::adjacent_find(at + 1, sorted_.end())) {
      seen_[PlaceOf(static_cast<Key>(leading | *at))] = static_cast<uint8_t>(mark_ + kTwice);
    }
    return first != sorted_.end();
  }

  const int low_bits_;
  int bits_ = 0;  // of the table, in the current call
  Column<Key> sorted_;
  Column<Key> scratch_;
  uint8_t mark_ = 0;
  // Where a key of the current call fell: from mark_ on, and mark_ + kTwice if it may be repeated. Elsewhere less.
  Column<uint8_t> seen_;
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

// Returns: how many of the first `n` tuples of an update may be taken out as repeats. An update with more of them is
// folded as a whole. Some tuples always stay.
inline size_t MaxRepeats(size_t n) { return (n + CurrentTuning().min_coarse_tuples) / 8; }

// Takes tuples with repeated keys out of the buckets, which end at `ends`, and closes the gaps. key_at(i): the key of
// tuple i, or its low bits. Calls take(bucket, i) for each tuple that goes, and move(from, to, n) for tuples that stay,
// in order.
// Returns: false if there are too many to be taken out; then the tuples are unspecified.
template <typename Key, typename KeyAt, typename Take, typename Move>
bool TakeRepeatsOut(std::array<uint32_t, kNumBuckets>& ends, int low_bits, KeyAt key_at, Take take, Move move) {
  RepeatFinder<Key> finder(low_bits);
  size_t begin = 0;  // of the tuples that were not looked at
  size_t kept = 0;
  for (size_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    const size_t end = ends[bucket];
    const auto keep_up_to = [&](size_t next) {
      if (kept != begin) move(begin, kept, next - begin);
      kept += next - begin;
      begin = next;
    };
    // Captures by value: the finder writes bytes, which for the compiler may alias anything captured by reference.
    if (finder.HasRepeat(end - begin, [key_at, begin](size_t i) { return key_at(begin + i); })) {
      for (size_t i = begin; i < end; ++i) {
        if (!finder.MayRepeat(key_at(i))) continue;
        keep_up_to(i);
        take(bucket, begin++);
        if (begin - kept > MaxRepeats(end)) return false;  // here, too, since a bucket may have most tuples
      }
    }
    keep_up_to(end);
    if (begin - kept > MaxRepeats(begin)) return false;
    ends[bucket] = static_cast<uint32_t>(kept);
  }
  return true;
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

// Returns: whether keys ascend by key >> low_bits, and none is repeated. Cost: O(n); for keys in no such order, O(1).
template <typename Key>
bool IsCoarseAndUnique(absl::Span<const Key> keys, int low_bits) {
  internal::RepeatFinder<Key> finder(low_bits);
  for (size_t begin = 0; begin < keys.size();) {
    const Key bucket = keys[begin] >> low_bits;
    size_t end = begin + 1;
    while (end < keys.size() && keys[end] >> low_bits == bucket) ++end;
    if (end < keys.size() && keys[end] >> low_bits < bucket) return false;
    if (end - begin > 1 && finder.HasRepeat(end - begin, [at = keys.data() + begin](size_t i) { return at[i]; })) {
      return false;
    }
    begin = end;
  }
  return true;
}

// Keys and their rows.
template <typename Key>
struct TupleColumns {
  Column<Key> keys;
  Column<std::byte> values;

  void resize(size_t size, size_t row_bytes) {
    keys.resize(size);
    values.resize(size * row_bytes);
  }
  void Append(Key key, const std::byte* row, size_t row_bytes) {
    keys.push_back(key);
    values.Append(row, row_bytes);
  }
  // Copies `n` tuples from other columns, or these, to place `to`.
  void Put(size_t to, const Key* from_keys, const std::byte* rows, size_t n, size_t row_bytes) {
    std::memmove(keys.data() + to, from_keys, n * sizeof(Key));
    if (row_bytes > 0) std::memmove(values.data() + to * row_bytes, rows, n * row_bytes);
  }
};

// Copies keys and their rows of `row_bytes` (may be 0) into ascending order of key >> low_bits, stably. Tuples with
// repeated keys go to `repeats`, all others to `out`. Requires: all keys are below num_rows, `repeats` is empty, and
// low_bits = CoarseBits(num_rows) > 0, so that key >> low_bits < kNumBuckets.
// Returns: false if there are too many repeats, or too few or too many tuples for a coarse order; the outputs are then
// unspecified.
// Cost: O(n), two passes over the keys, one over the rows; after the first repeat one more over both.
template <typename Key>
bool OrderCoarsely(absl::Span<const Key> keys, const std::byte* values, size_t row_bytes, int low_bits,
                   TupleColumns<Key>& out, TupleColumns<Key>& repeats) {
  const size_t n = keys.size();
  if (n < CurrentTuning().min_coarse_tuples || n > UINT32_MAX) return false;
  out.resize(n, row_bytes);
  Key* const out_keys = out.keys.data();
  std::byte* const out_values = out.values.data();
  auto next = internal::BucketBegins(keys, low_bits, [&](size_t begin, size_t end) {
    internal::PrefetchForWriting(out_keys + begin, (end - begin) * sizeof(Key));
    if (row_bytes <= sizeof(uint64_t)) {
      internal::PrefetchForWriting(out_values + begin * row_bytes, (end - begin) * row_bytes);
    }
  });
  const auto scatter = [&]<size_t kRowBytes>(std::integral_constant<size_t, kRowBytes>) {
    internal::Scatter<kRowBytes>(keys, values, row_bytes, low_bits, next.data(), out_keys, out_values);
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
  // `next` now holds the ends of the buckets.
  const bool separated = internal::TakeRepeatsOut<Key>(
      next, low_bits, [out_keys](size_t i) { return out_keys[i]; },
      [&](size_t, size_t i) { repeats.Append(out_keys[i], out_values + i * row_bytes, row_bytes); },
      [&](size_t from, size_t to, size_t count) {
        out.Put(to, out_keys + from, out_values + from * row_bytes, count, row_bytes);
      });
  out.resize(next.back(), row_bytes);
  return separated;
}

// Tuples of 32-bit values in coarse order, each packed into two or three units of 32 bits: the value and the low bits
// of the key; the leading bits are the number of the tuple's bucket. The scatter writes to half as many cache lines at
// a time as it does with keys and values apart, and takes a third of the time.
struct CoarseWords {
  int low_bits = 0;
  std::array<uint32_t, internal::kNumBuckets> ends{};  // position behind the last tuple of each bucket
  Column<uint32_t> units;  // of each tuple: the value, bits 0 … 31 of its key, and, if low_bits > 32, the next low bits

  // Calls use(units of a tuple), a constant.
  template <typename Use>
  auto WithUnits(Use use) const {
    return low_bits > 32 ? use(std::integral_constant<size_t, 3>{}) : use(std::integral_constant<size_t, 2>{});
  }
  // Returns: the low bits of the key of the tuple at `tuple`.
  template <size_t kUnits>
  static uint64_t LowBits(const uint32_t* tuple) {
    return kUnits == 3 ? uint64_t{tuple[2]} << 32 | tuple[1] : tuple[1];
  }

  uint64_t size() const { return ends.back(); }
  uint64_t BeginOf(uint64_t bucket) const { return bucket == 0 ? 0 : ends[bucket - 1]; }
  // Cost: O(log number of buckets).
  uint64_t KeyAt(uint64_t index) const {
    const auto bucket = static_cast<uint64_t>(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
    return WithUnits([&]<size_t kUnits>(std::integral_constant<size_t, kUnits>) {
      return bucket << low_bits | LowBits<kUnits>(units.data() + index * kUnits);
    });
  }

  // Calls use(key, value) for every tuple, in order.
  template <typename Use>
  void ForEach(Use use) const {
    WithUnits([&]<size_t kUnits>(std::integral_constant<size_t, kUnits>) {
      const uint32_t* tuple = units.data();
      for (uint64_t bucket = 0; bucket < ends.size(); ++bucket) {
        const uint32_t* const end = units.data() + ends[bucket] * kUnits;
        for (; tuple < end; tuple += kUnits) use(bucket << low_bits | LowBits<kUnits>(tuple), tuple[0]);
      }
    });
  }
};

// The same as OrderCoarsely, into words. `row_bytes` is that of a float32.
template <typename Key>
bool OrderCoarselyInWords(absl::Span<const Key> keys, const std::byte* values, int low_bits, CoarseWords& out,
                          TupleColumns<Key>& repeats) {
  const size_t n = keys.size();
  if (n < CurrentTuning().min_coarse_tuples || n > UINT32_MAX) return false;
  out.low_bits = low_bits;
  const uint64_t low_mask = (uint64_t{1} << low_bits) - 1;
  return out.WithUnits([&]<size_t kUnits>(std::integral_constant<size_t, kUnits>) {
    out.units.resize(n * kUnits);
    uint32_t* const units = out.units.data();
    auto next = internal::BucketBegins(keys, low_bits, [units](size_t begin, size_t end) {
      internal::PrefetchForWriting(units + begin * kUnits, (end - begin) * kUnits * sizeof(*units));
    });
    for (size_t i = 0; i < n; ++i) {
      __builtin_prefetch(values + i * sizeof(uint32_t) + 1024);
      uint32_t* const to = units + next[static_cast<size_t>(keys[i] >> low_bits)]++ * kUnits;
      const uint64_t low = keys[i] & low_mask;
      std::memcpy(to, values + i * sizeof(*to), sizeof(*to));
      to[1] = static_cast<uint32_t>(low);
      if constexpr (kUnits == 3) to[2] = static_cast<uint32_t>(low >> 32);
    }
    // `next` now holds the ends of the buckets.
    const auto low_bits_at = [units](size_t i) { return CoarseWords::LowBits<kUnits>(units + i * kUnits); };
    const bool separated = internal::TakeRepeatsOut<Key>(
        next, low_bits, [low_bits_at](size_t i) { return static_cast<Key>(low_bits_at(i)); },
        [&](size_t bucket, size_t i) {
          const auto key = static_cast<Key>(uint64_t{bucket} << low_bits | low_bits_at(i));
          repeats.Append(key, reinterpret_cast<const std::byte*>(units + i * kUnits), sizeof(*units));
        },
        [units](size_t from, size_t to, size_t count) {
          std::memmove(units + to * kUnits, units + from * kUnits, count * kUnits * sizeof(*units));
        });
    out.ends = next;
    out.units.resize(out.size() * kUnits);
    return separated;
  });
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_COARSE_ORDER_H_
