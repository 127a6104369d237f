// Allocation ahead of a push_back that must not fail.
#ifndef SPARSEAGG_HOST_BASE_RESERVE_ONE_H_
#define SPARSEAGG_HOST_BASE_RESERVE_ONE_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sparseagg {

// Makes sure that the next push_back does not throw. A class that changes several members together calls this first.
// Cost: O(1) amortised; reserve(size + 1) would copy the vector every time.
template <typename T>
void ReserveOne(std::vector<T>& vector) {
  if (vector.size() == vector.capacity()) vector.reserve(std::max<size_t>(1, 2 * vector.size()));
}

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_RESERVE_ONE_H_
