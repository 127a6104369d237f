// Walks the tuples of one update in ascending order of key.
#ifndef SPARSEAGG_HOST_CPU_SIMD_CURSOR_H_
#define SPARSEAGG_HOST_CPU_SIMD_CURSOR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "host/cpu/simd/kernels.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// One cache line: a merge of many small updates looks at little else.
template <typename Key>
struct Cursor {
  const Key* keys = nullptr;  // null: the run from `first`
  const std::byte* values = nullptr;
  uint64_t position = 0;
  uint64_t stop = 0;  // end of the current block's tuples, where those are counted first
  uint64_t end = 0;
  double weight = 1.0;
  Key first = 0;
  DType dtype = DType::kFloat32;
  bool ascends = true;  // its keys have to; else they are in coarse order

  Key operator[](uint64_t index) const { return keys != nullptr ? keys[index] : static_cast<Key>(first + index); }

  // How many tuples, from `position` on, have keys ≤ last; kOutOfOrder.
  uint64_t CountTo(Key last) const {
    const uint64_t left = end - position;
    if (keys != nullptr) return CountUpTo(keys + position, left, last, ascends);
    if (left == 0 || (*this)[position] > last) return 0;
    return std::min<uint64_t>(left - 1, last - (*this)[position]) + 1;
  }

  // Moves `stop` behind the last key ≤ `last` and returns the tuples passed; kOutOfOrder, and stays.
  uint64_t Advance(Key last) {
    const uint64_t passed = CountTo(last);
    if (passed == kOutOfOrder) return passed;
    stop = position + passed;
    return passed;
  }

  // Moves `position` to the first key ≥ `to`, which may be far: doubling steps, then bisection.
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
