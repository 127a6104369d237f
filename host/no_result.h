// Why a merge has no result, in the words of every engine.
#ifndef SPARSEAGG_HOST_NO_RESULT_H_
#define SPARSEAGG_HOST_NO_RESULT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "host/spec/spec.h"

namespace sparseagg {

// Where it stands. A key that min_contributors hides is not named.
struct FailedRow {
  uint64_t key = 0;
  uint64_t contributors = 0;  // of the key; only looked at where min_contributors is more than 1
};

// FAILED_PRECONDITION: the weights of a mean add up to 0.
absl::Status NoWeight(const TensorSpec& spec, const FailedRow& row);
// OUT_OF_RANGE: an integer.
absl::Status LeavesInt64(const TensorSpec& spec, const FailedRow& row, uint64_t column);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_NO_RESULT_H_
