// Stable sort by integer keys.
#ifndef SPARSEAGG_HOST_CPU_RADIX_SORT_H_
#define SPARSEAGG_HOST_CPU_RADIX_SORT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "host/column.h"

namespace sparseagg::cpu {

// Sorts `entries` (fewer than 2^32) by key_of(entry), an unsigned number below 2^key_bits; equal keys keep their order.
// `scratch` is memory to reuse. Radix sort from the least significant digit: O(n · ⌈key_bits/11⌉) for any distribution.
template <typename Entry, typename KeyOf>
void StableSortByKey(Column<Entry>& entries, Column<Entry>& scratch, int key_bits, KeyOf key_of) {
  constexpr int kMaxDigitBits = 11;
  constexpr int kMaxPasses = (64 + kMaxDigitBits - 1) / kMaxDigitBits;
  const size_t n = entries.size();
  if (n < 2 || key_bits == 0) return;
  if (n < 256) {  // counting up to 2048 digits would cost more
    std::stable_sort(entries.begin(), entries.end(),
                     [&](const Entry& a, const Entry& b) { return key_of(a) < key_of(b); });
    return;
  }
  const int passes = (key_bits + kMaxDigitBits - 1) / kMaxDigitBits;
  const int digit_bits = (key_bits + passes - 1) / passes;
  const size_t num_digits = size_t{1} << digit_bits;
  const auto digit = [&](const Entry& entry, int pass) {
    return static_cast<size_t>(key_of(entry) >> (pass * digit_bits)) & (num_digits - 1);
  };
  // The numbers of all digits of all passes, in one look at the keys.
  std::array<std::array<uint32_t, size_t{1} << kMaxDigitBits>, kMaxPasses> offsets;
  for (int pass = 0; pass < passes; ++pass) std::fill_n(offsets[pass].begin(), num_digits, 0u);
  for (size_t i = 0; i < n; ++i) {
    for (int pass = 0; pass < passes; ++pass) ++offsets[pass][digit(entries[i], pass)];
  }
  scratch.resize(n);
  for (int pass = 0; pass < passes; ++pass) {
    auto& offset = offsets[pass];
    if (offset[digit(entries[0], pass)] == n) continue;  // one digit only
    uint32_t sum = 0;
    for (size_t d = 0; d < num_digits; ++d) sum += std::exchange(offset[d], sum);
    const Entry* from = entries.data();
    Entry* to = scratch.data();
    for (size_t i = 0; i < n; ++i) to[offset[digit(from[i], pass)]++] = from[i];
    std::swap(entries, scratch);
  }
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_RADIX_SORT_H_
