// What the accumulators of all engines decide in the same way: what is pending, what a mean divides by.
#ifndef SPARSEAGG_HOST_ACCUMULATION_H_
#define SPARSEAGG_HOST_ACCUMULATION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "host/base/saturating.h"
#include "host/engine.h"
#include "host/spec/spec.h"

namespace sparseagg {

// The divisor of MEAN: as mean_divisor says, the sum of all submissions' weights, their number, or a constant.
// `weights` are in order of Add, kPartialWeight for partials, which `partials` are the totals of. Deterministic: folded
// in canonical order; with partials, in integers up to 2^53, or as binned sums. Returns: 0 for every operator but MEAN.
double TotalWeight(const TensorSpec& spec, absl::Span<const double> weights, const PartialTotals& partials,
                   SubmissionOrder order);

// The same from the totals of all submissions. Requires: not a sum of weights in canonical order.
double TotalWeight(const TensorSpec& spec, const PartialTotals& totals);

// Returns: the totals of all submissions, of the same arguments. The sum of weights saturates.
PartialTotals TotalsOf(const TensorSpec& spec, absl::Span<const double> weights, const PartialTotals& partials);

// Adds totals.
PartialTotals Sum(const PartialTotals& a, const PartialTotals& b);

// Checks that `order` has one entry for each submission. Errors: INTERNAL.
absl::Status CheckOrder(const TensorSpec& spec, SubmissionOrder order, uint64_t num_submissions);

// Erases the elements at the ascending `indices`; the elements after them move down. `first`: index of the element that
// `sequence` begins with. Allocates nothing. Cost: O(size), or the number of elements after the first erased one.
template <typename Sequence>
void EraseAt(absl::Span<const uint32_t> indices, Sequence& sequence, size_t first = 0) {
  if (indices.empty()) return;
  size_t kept = indices.front() - first;
  auto next = indices.begin();
  for (size_t at = kept; at < sequence.size(); ++at) {
    if (next != indices.end() && *next - first == at) {
      ++next;
    } else {
      sequence[kept++] = std::move(sequence[at]);
    }
  }
  sequence.resize(kept);
}

// The size of an accumulator's pending updates: added, not merged yet. Not thread-safe.
class PendingSize {
 public:
  // `object_bytes`: size of the object that holds one update.
  explicit PendingSize(size_t object_bytes) : overhead_bytes_(object_bytes + kAllocationBytes) {}

  void Add(size_t bytes, uint64_t num_keys) {
    ++num_updates_;
    bytes_ += bytes;
    num_keys_ = SaturatingAdd(num_keys_, num_keys);
  }
  void Add(const PendingSize& other) {
    num_updates_ += other.num_updates_;
    bytes_ += other.bytes_;
    num_keys_ = SaturatingAdd(num_keys_, other.num_keys_);
  }
  void Remove(size_t bytes, uint64_t num_keys) {
    --num_updates_;
    bytes_ -= bytes;
    num_keys_ -= std::min(num_keys_, num_keys);  // a saturated sum stays an upper bound
  }
  void Clear() { num_updates_ = bytes_ = num_keys_ = 0; }

  size_t memory_bytes() const { return bytes_ + num_updates_ * overhead_bytes_; }
  uint64_t num_keys() const { return num_keys_; }  // saturates

 private:
  // Upper estimate of what the allocator adds for one update: the object, its columns and their owner.
  static constexpr size_t kAllocationBytes = 192;

  const size_t overhead_bytes_;  // of one update, besides its keys and values
  uint64_t num_updates_ = 0;
  size_t bytes_ = 0;
  uint64_t num_keys_ = 0;
};

// The row that has no result. Error texts do not name its key if min_contributors hides the key.
struct FailedRow {
  uint64_t key = 0;
  uint64_t contributors = 0;  // of the key; needed only if min_contributors > 1
};

// Returns: whether a mean without weight at one key has none at all, so that the merge fails: all keys have one
// divisor. Of a dense tensor, every submission lists every key.
inline bool HasOneDivisor(const TensorSpec& spec) {
  const Op op = spec.aggregation.op;
  return op == Op::kMean || (op == Op::kCoordinateMean && spec.layout == Layout::kDense);
}

// FAILED_PRECONDITION: the weights of all submissions add up to 0, so that no key has a mean or an order statistic.
absl::Status ZeroWeightError(const TensorSpec& spec);
// OUT_OF_RANGE: an integer sum overflows int64. `column` is the position of the value in its row.
absl::Status OverflowError(const TensorSpec& spec, const FailedRow& row, uint64_t column);

// FAILED_PRECONDITION: a fold was asked for of submissions that an order statistic keeps.
absl::Status KeepsSubmissionsError(const TensorSpec& spec);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_ACCUMULATION_H_
