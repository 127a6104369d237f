// Cursor over the tuples of one update.
#ifndef SPARSEAGG_HOST_CPU_SIMD_CURSOR_H_
#define SPARSEAGG_HOST_CPU_SIMD_CURSOR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "host/cpu/simd/kernels.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// Position of a merge in one update, or in the base. It moves through the keys in ascending order, block by block. A
// cache line large with 32-bit keys, as a merge of many small updates spends its time on little else. Owned by Sources.
template <typename Key>
struct Cursor {
  const Key* keys = nullptr;  // null: the keys are the run first, first + 1, …
  const std::byte* values = nullptr;
  uint64_t position = 0;
  uint64_t stop = 0;  // end of the current block's tuples, after Advance
  uint64_t end = 0;
  ValueScale scale;
  Key first = 0;
  DType dtype = DType::kFloat32;

  Key operator[](uint64_t index) const { return keys != nullptr ? keys[index] : static_cast<Key>(first + index); }

  // Returns: the number of tuples, from `position` on, with keys ≤ last.
  uint64_t CountTo(Key last) const {
    const uint64_t left = end - position;
    if (keys != nullptr) return CountUpTo(keys + position, left, last);
    if (left == 0 || (*this)[position] > last) return 0;
    return std::min<uint64_t>(left - 1, last - (*this)[position]) + 1;
  }

  // Moves `stop` behind the last tuple with key ≤ last.
  // Returns: the number of tuples from `position` to `stop`.
  uint64_t Advance(Key last) {
    const uint64_t passed = CountTo(last);
    stop = position + passed;
    return passed;
  }

  // Moves `position` to the first tuple with key ≥ to.
  // Cost: O(log of the distance): doubling steps, then bisection.
  void SkipTo(Key to) {
    uint64_t low = position;
    uint64_t step = 1;
    while (low + step <= end && (*this)[low + step - 1] < to) {
      low += step;
      step *= 2;
    }
    uint64_t high = std::min(low + step - 1, end);
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      if ((*this)[middle] < to) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    position = low;
  }
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_CURSOR_H_
