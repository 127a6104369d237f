// Sorting networks for a few values.
#ifndef SPARSEAGG_HOST_CPU_ORDER_SORTING_NETWORK_H_
#define SPARSEAGG_HOST_CPU_ORDER_SORTING_NETWORK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sparseagg::cpu {

inline constexpr size_t kMaxNetwork = 128;  // values
inline constexpr size_t kGroupLanes = 16;   // lists that are sorted side by side

// Swaps the values at `low` and `high` unless they ascend.
struct Comparator {
  uint8_t low;
  uint8_t high;
};

// Calls visit(comparator, phase) for the comparators, in order, that sort `count` values: Batcher's odd-even merge sort
// (Knuth, The Art of Computer Programming 3, 5.2.2, algorithm M). Phases 1, 2, 4, … p sort each run of 2p values.
template <typename Visit>
constexpr void ForSortingNetwork(size_t count, Visit visit) {
  for (size_t p = 1; p < count; p *= 2) {
    for (size_t k = p; k >= 1; k /= 2) {
      for (size_t j = k % p; j + k < count; j += 2 * k) {
        for (size_t i = j; i < j + k && i + k < count; ++i) {
          if (i / (2 * p) == (i + k) / (2 * p))
            visit(Comparator{static_cast<uint8_t>(i), static_cast<uint8_t>(i + k)}, p);
        }
      }
    }
  }
}

// Returns: how many values the kernels sort in registers, run after run, before the rest of a network of `count`
// values: 16, 8, or 0 for none.
constexpr size_t RunOf(size_t count) { return count >= 16 ? 16 : count >= 8 ? 8 : 0; }

// Returns: the comparators that remain when each whole run of RunOf(count) values is sorted, without those that do not
// change which values come to `ranks`; none: to all ranks. Requires: count ≤ kMaxNetwork, ranks < count.
std::vector<Comparator> SelectingNetwork(size_t count, absl::Span<const uint64_t> ranks);

// The networks that one thread has used last: one for each number of values. Not thread-safe.
class NetworkCache {
 public:
  // Returns: as SelectingNetwork. Valid until the next call.
  const std::vector<Comparator>& Find(size_t count, absl::Span<const uint64_t> ranks);

 private:
  struct Entry {
    std::vector<uint64_t> ranks;
    bool is_made = false;
    std::vector<Comparator> network;
  };
  std::array<Entry, kMaxNetwork + 1> entries_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_SORTING_NETWORK_H_
