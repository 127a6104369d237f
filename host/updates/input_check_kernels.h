// The vectorised loops of validation. Every submission passes through them; they run as fast as memory is read.
#ifndef SPARSEAGG_HOST_UPDATES_INPUT_CHECK_KERNELS_H_
#define SPARSEAGG_HOST_UPDATES_INPUT_CHECK_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace sparseagg::internal {

// What one pass finds out about a sequence of keys.
struct KeyFacts {
  uint64_t largest = 0;
  bool descends = false;  // some key is smaller than the one before it
  bool repeats = false;   // some key equals the one before it
};

// Requires: count ≥ 1. `keys` may be unaligned.
KeyFacts FindKeyFacts32(const void* keys, size_t count);
KeyFacts FindKeyFacts64(const void* keys, size_t count);

// to[i] = the low half of from[i], a 64-bit key. Reads each key once. `from` may be unaligned.
// Returns: the OR of all keys of `from`. If its upper half is 0, no key was cut.
uint64_t NarrowKeys(const void* from, size_t count, uint32_t* to);

// Returns: the position of the first value that has all bits of `mask`, or `count`. `values` may be unaligned.
size_t FindAllBits16(const void* values, size_t count, uint16_t mask);
size_t FindAllBits32(const void* values, size_t count, uint32_t mask);
size_t FindAllBits64(const void* values, size_t count, uint64_t mask);

}  // namespace sparseagg::internal

#endif  // SPARSEAGG_HOST_UPDATES_INPUT_CHECK_KERNELS_H_
