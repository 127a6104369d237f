// Sums and products that saturate at 2^64-1 instead of wrapping, for sizes that callers choose.
#ifndef SPARSEAGG_HOST_BASE_SATURATING_H_
#define SPARSEAGG_HOST_BASE_SATURATING_H_

#include <cstdint>
#include <limits>

namespace sparseagg {

inline uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  return b > kMax - a ? kMax : a + b;
}

inline uint64_t SaturatingMultiply(uint64_t a, uint64_t b) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  return a != 0 && b > kMax / a ? kMax : a * b;
}

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_SATURATING_H_
