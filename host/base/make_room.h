// Room in vectors before anything is changed that goes with it.
#ifndef SPARSEAGG_HOST_BASE_MAKE_ROOM_H_
#define SPARSEAGG_HOST_BASE_MAKE_ROOM_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sparseagg {

// The next push_back does not throw. Constant time, amortised, which reserve(size + 1) would not be.
template <typename T>
void MakeRoomForOne(std::vector<T>& vector) {
  if (vector.size() == vector.capacity()) vector.reserve(std::max<size_t>(1, 2 * vector.size()));
}

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_MAKE_ROOM_H_
