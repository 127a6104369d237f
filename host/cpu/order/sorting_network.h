// Sorting networks for a few values.
#ifndef SPARSEAGG_HOST_CPU_ORDER_SORTING_NETWORK_H_
#define SPARSEAGG_HOST_CPU_ORDER_SORTING_NETWORK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sparseagg::cpu {

inline constexpr size_t kMaxNetwork = 128;  // values
inline constexpr size_t kGroupLanes = 16;   // lists that are sorted side by side

// Swaps the values at `low` and `high` unless they ascend.
struct Comparator {
  uint8_t low;
  uint8_t high;
};

// Returns: the comparators, in order, that sort `count` values: Batcher's odd-even merge sort (Knuth, The Art of
// Computer Programming 3, 5.2.2, algorithm M). Requires: count ≤ kMaxNetwork. Thread-safe.
const std::vector<Comparator>& SortingNetwork(size_t count);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_SORTING_NETWORK_H_
