// Vector kernels of order statistics: kGroupLanes lanes side by side, of equally many values each.
#ifndef SPARSEAGG_HOST_CPU_ORDER_LANE_KERNELS_H_
#define SPARSEAGG_HOST_CPU_ORDER_LANE_KERNELS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "host/cpu/order/lanes.h"

namespace sparseagg::cpu {

// The values of kGroupLanes lanes, in canonical order: value p of lane l is values[p · step + l].
template <typename T>
struct Planes {
  const T* values = nullptr;
  size_t step = kGroupLanes;
  size_t count = 0;  // of values in each lane; at most kMaxNetwork
  // Of NetworkCache: for the ranks that are asked for, or for all of them.
  absl::Span<const Comparator> network;
  uint64_t zeros = 0;  // votes for 0 besides these
  uint64_t votes() const { return count + zeros; }
};

// Writes, for each lane, the votes at the ranks `low` and `high` in ascending order, with +0 for −0. Both are NaN if a
// value is NaN. Requires: a network for these ranks; with zeros, for all. T: float, double, int64_t.
template <typename T>
void PickRanks(const Planes<T>& planes, uint64_t low, uint64_t high, T* at_low, T* at_high);

// Weights of the values of some planes: of value p of lane l, weights[p · step + l · lane_step].
struct PlaneWeights {
  const double* weights = nullptr;  // null: all are 1
  size_t step = kGroupLanes;
  size_t lane_step = 1;  // 1, or 0: all lanes have the same
};

// Returns: the ranks that TrimmedSums asks for, of `votes` values: on both sides of either threshold.
inline std::array<uint64_t, 4> TrimmedRanks(uint64_t votes, uint64_t trim) {
  const uint64_t outside = trim == 0 ? 0 : 1;
  return {trim - outside, trim, votes - 1 - trim, votes - 1 - trim + outside};
}

// Writes, for each lane, the sum of weight · value over the votes that are left when the `trim` lowest and the `trim`
// highest are dropped, and the sum of their weights. Of equal values, those first in canonical order are the lower
// ones. Both sums are float64 folds in canonical order. The sum is NaN if a value is NaN; the other one is then of all
// values. Requires: 2 · trim < votes; with weights, no zeros besides the values; a network for the ranks TrimmedRanks,
// or, with zeros, for all. T: float, double.
template <typename T>
void TrimmedSums(const Planes<T>& planes, const PlaneWeights& weights, uint64_t trim, double* sums, double* divisors);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_LANE_KERNELS_H_
