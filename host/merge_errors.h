// The errors of a merge that has no result, in one wording for every engine.
#ifndef SPARSEAGG_HOST_MERGE_ERRORS_H_
#define SPARSEAGG_HOST_MERGE_ERRORS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "host/spec/spec.h"

namespace sparseagg {

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

#endif  // SPARSEAGG_HOST_MERGE_ERRORS_H_
