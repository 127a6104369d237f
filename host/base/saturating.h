// Sizes that callers choose: sums and products that saturate at 2^64-1 instead of wrapping, and vectors that grow ahead
// of calls that must not fail.
#ifndef SPARSEAGG_HOST_BASE_SATURATING_H_
#define SPARSEAGG_HOST_BASE_SATURATING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace sparseagg {

inline uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  return b > kMax - a ? kMax : a + b;
}

inline uint64_t SaturatingMultiply(uint64_t a, uint64_t b) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  return a != 0 && b > kMax / a ? kMax : a * b;
}

// Makes sure that appending `count` elements does not throw. A class that changes several members together calls this
// first. Cost: O(count) amortised; reserve(size + count) would copy the vector every time.
template <typename T>
void ReserveMore(size_t count, std::vector<T>& vector) {
  const size_t size = vector.size() + count;
  if (size > vector.capacity()) vector.reserve(std::max(size, 2 * vector.size()));
}

template <typename T>
void ReserveOne(std::vector<T>& vector) {
  ReserveMore(1, vector);
}

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_SATURATING_H_
