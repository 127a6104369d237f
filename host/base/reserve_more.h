// Allocation ahead of push_back and insert calls that must not fail.
#ifndef SPARSEAGG_HOST_BASE_RESERVE_ONE_H_
#define SPARSEAGG_HOST_BASE_RESERVE_ONE_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sparseagg {

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

#endif  // SPARSEAGG_HOST_BASE_RESERVE_ONE_H_
