// Order statistics of lanes. A lane is the list of values at one key and column.
#ifndef SPARSEAGG_HOST_CPU_ORDER_LANES_H_
#define SPARSEAGG_HOST_CPU_ORDER_LANES_H_

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "host/spec/dtype.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Sorting networks for a few values.
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

// Conversion to Out (see LaneEvaluator) for a result of dtype `dtype`.
template <typename Out>
struct HalfWay;

template <>
struct HalfWay<double> {
  static double Single(double value, DType) { return value; }
  // Returns: (a + b) / 2, rounded once: the sum of two halves, unless halving a denormal would round.
  static double Between(double a, double b, DType) {
    const double sum = a + b;
    return std::isfinite(sum) ? 0.5 * sum : 0.5 * a + 0.5 * b;
  }
  // To float32 directly from the integer: via float64 it would be rounded twice.
  static double Single(int64_t value, DType dtype) {
    return dtype == DType::kFloat32 ? static_cast<double>(static_cast<float>(value)) : static_cast<double>(value);
  }
  static double Between(int64_t a, int64_t b, DType dtype) {
    const __int128 sum = static_cast<__int128>(a) + b;
    return 0.5 * (dtype == DType::kFloat32 ? static_cast<double>(static_cast<float>(sum)) : static_cast<double>(sum));
  }
};

template <>
struct HalfWay<int64_t> {
  static int64_t Single(int64_t value, DType) { return value; }
  // Rounded to nearest even.
  static int64_t Between(int64_t a, int64_t b, DType) {
    const __int128 sum = static_cast<__int128>(a) + b;
    const __int128 below = sum >> 1;
    return static_cast<int64_t>(below + ((sum & 1) != 0 && (below & 1) != 0 ? 1 : 0));
  }
};

// What the statistic of every lane needs. The same for all threads of a merge.
struct StatisticParams {
  explicit StatisticParams(const TensorSpec& tensor) : op(tensor.aggregation.op), order(tensor.aggregation.order) {}

  Op op;
  OrderOptions order;
  DType dtype = DType::kFloat32;   // of the result
  bool by_weight = false;          // the weights matter for the values
  uint64_t num_submissions = 0;    // N
  std::vector<double> weights;     // of all submissions, in canonical order; empty unless by_weight
  std::vector<uint32_t> position;  // of each update, its place in canonical order; empty unless by_weight

  bool needs_sources() const { return by_weight && absent_is_zero(); }

  bool absent_is_zero() const { return order.absent == AbsentPolicy::kZero; }
  // Returns: the number of values of a lane that `n` submissions list, with the zeros of the others if these vote.
  uint64_t NumVotes(uint64_t n) const { return absent_is_zero() ? num_submissions : n; }
};

// Why a lane has no statistic.
enum class LaneError : uint8_t { kNone, kZeroWeight, kOverflow };

// The values at one key, in canonical order.
template <typename T>
struct LaneRows {
  const T* values = nullptr;  // value of column c of row p: values[p · row_step + c · column_step]
  size_t row_step = 1;
  size_t column_step = 1;
  // Of row p at p · place_step. Null unless by_weight.
  const double* weights = nullptr;
  const uint32_t* sources = nullptr;  // index of the row's update; only if absent submissions vote, too
  size_t place_step = 1;
  size_t count = 0;
  size_t columns = 1;
};

// Evaluator of one lane after another, for every type, op, weighting and policy: simple and not fast. The kernels
// (lane_kernels.h) do the same arithmetic for most lanes. Results are float64 values to be rounded to the result's
// dtype; of integers with an integer result, exact int64 values. Owned by one thread of a merge. Not thread-safe.
//
// T: float, double, int64_t. Out: double; int64_t only if T is int64_t.
template <typename T, typename Out>
class LaneEvaluator {
 public:
  explicit LaneEvaluator(const StatisticParams& params) : params_(params) {}

  // Writes the statistic of each column of `rows` to `out`.
  // Requires: rows.count > 0. Returns: the error of the key; a zero weight comes before an overflow.
  LaneError Evaluate(const LaneRows<T>& rows, Out* out);

 private:
  LaneError EvaluateLane(Out& out);
  LaneError TrimmedMean(Out& out);
  LaneError WeightedQuantile(double q, Out& out);
  T SelectVote(uint64_t rank);
  void LoadVotes(const LaneRows<T>& rows, size_t column);

  const StatisticParams& params_;
  // The votes of the lane, in canonical order. Zeros of absent submissions are listed only if they have weights.
  std::vector<T> values_;
  std::vector<double> weights_;  // empty unless by_weight
  uint64_t num_zeros_ = 0;       // votes for 0 that are not listed
  std::vector<T> sorted_;
  std::vector<uint32_t> order_;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_LANES_H_
