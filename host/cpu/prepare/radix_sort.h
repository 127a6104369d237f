// Stable radix sort by integer keys.
#ifndef SPARSEAGG_HOST_CPU_PREPARE_RADIX_SORT_H_
#define SPARSEAGG_HOST_CPU_PREPARE_RADIX_SORT_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "host/base/column.h"

namespace sparseagg::cpu {
namespace internal {

// 2048 counters of one pass fit the L1 cache.
inline constexpr int kMaxDigitBits = 11;

// Counts the digits of all passes in one pass over the keys.
template <int kPasses, typename Entry, typename DigitOf, typename Counts>
void CountDigits(const Column<Entry>& entries, DigitOf digit, Counts& counts) {
  const Entry* const end = entries.end();
  for (const Entry* entry = entries.begin(); entry < end; ++entry) {
    // Unrolled over the passes at compile time; as a loop, counting would take as long as a pass of the sort.
    [&]<size_t... kPass>(std::index_sequence<kPass...>) {
      (++counts[kPass][digit(*entry, static_cast<int>(kPass))], ...);
    }
    (std::make_index_sequence<kPasses>());
  }
}

// Sorts stably by bits [low_bit, high_bit) of the keys, least significant digit first.
template <typename Entry, typename KeyOf>
void SortByDigits(Column<Entry>& entries, Column<Entry>& scratch, int low_bit, int high_bit, KeyOf key_of) {
  constexpr int kMaxPasses = (64 + kMaxDigitBits - 1) / kMaxDigitBits;
  static_assert(kMaxPasses == 6);
  const size_t n = entries.size();
  const int bits = high_bit - low_bit;
  const int passes = (bits + kMaxDigitBits - 1) / kMaxDigitBits;
  const int digit_bits = (bits + passes - 1) / passes;
  const size_t num_digits = size_t{1} << digit_bits;
  const auto digit = [&](const Entry& entry, int pass) {
    return static_cast<size_t>(key_of(entry) >> (low_bit + pass * digit_bits)) & (num_digits - 1);
  };
  std::array<std::array<uint32_t, size_t{1} << kMaxDigitBits>, kMaxPasses> offsets;
  for (int pass = 0; pass < passes; ++pass) std::fill_n(offsets[pass].begin(), num_digits, 0u);
  switch (passes) {
    case 1:
      CountDigits<1>(entries, digit, offsets);
      break;
    case 2:
      CountDigits<2>(entries, digit, offsets);
      break;
    case 3:
      CountDigits<3>(entries, digit, offsets);
      break;
    case 4:
      CountDigits<4>(entries, digit, offsets);
      break;
    case 5:
      CountDigits<5>(entries, digit, offsets);
      break;
    default:
      CountDigits<kMaxPasses>(entries, digit, offsets);
      break;
  }
  scratch.resize(n);
  for (int pass = 0; pass < passes; ++pass) {
    auto& offset = offsets[pass];
    if (offset[digit(entries[0], pass)] == n) continue;  // all keys have the same digit
    uint32_t sum = 0;
    for (size_t d = 0; d < num_digits; ++d) sum += std::exchange(offset[d], sum);
    const Entry* from = entries.data();
    Entry* to = scratch.data();
    for (size_t i = 0; i < n; ++i) to[offset[digit(from[i], pass)]++] = from[i];
    std::swap(entries, scratch);
  }
}

// Stable insertion sort.
// Returns: false if it gave up after `max_moves` moves; no entry is lost then, and equal keys still are in order.
template <typename Entry, typename KeyOf>
bool SortByInsertion(Column<Entry>& entries, size_t max_moves, KeyOf key_of) {
  Entry* const first = entries.data();
  Entry* const end = first + entries.size();
  for (Entry* next = first + 1; next < end; ++next) {
    if (!(key_of(*next) < key_of(next[-1]))) continue;
    const Entry entry = *next;
    Entry* to = next;
    for (; to > first && key_of(entry) < key_of(to[-1]); --to) *to = to[-1];
    *to = entry;
    const auto moves = static_cast<size_t>(next - to);
    if (moves > max_moves) return false;
    max_moves -= moves;
  }
  return true;
}

}  // namespace internal

// Sorts `entries` by key_of(entry); entries with equal keys keep their order. `scratch`: memory to reuse between calls.
// The two may trade their memory, so pointers into `entries` are void afterwards.
// Requires: fewer than 2^32 entries; key_of(entry) is unsigned and below 2^key_bits.
// Cost: O(n · ⌈key_bits / 11⌉) for any distribution of keys.
//
// If keys have many more bits than log₂ n, the leading bits alone almost sort evenly distributed keys. The few
// neighbours left in disorder are sorted by insertion. Other distributions pay for this attempt, and then for the full
// sort.
template <typename Entry, typename KeyOf>
void StableSortByKey(Column<Entry>& entries, Column<Entry>& scratch, int key_bits, KeyOf key_of) {
  const size_t n = entries.size();
  if (n < 2 || key_bits == 0) return;
  if (n < 256) {  // clearing and summing up to 2048 counters would cost more
    std::stable_sort(entries.begin(), entries.end(),
                     [&](const Entry& a, const Entry& b) { return key_of(a) < key_of(b); });
    return;
  }
  // With so many leading bits or more, evenly distributed keys have at most about n / 64 pairs that agree in them.
  const int leading_bits = std::bit_width(n) + 5;
  const int passes = (leading_bits + internal::kMaxDigitBits - 1) / internal::kMaxDigitBits;
  if (passes * internal::kMaxDigitBits < key_bits) {
    internal::SortByDigits(entries, scratch, key_bits - passes * internal::kMaxDigitBits, key_bits, key_of);
    if (internal::SortByInsertion(entries, n / 8, key_of)) return;
  }
  internal::SortByDigits(entries, scratch, 0, key_bits, key_of);
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_RADIX_SORT_H_
