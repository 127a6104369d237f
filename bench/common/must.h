// Error handling of benchmarks: they end at the first error.
#ifndef SPARSEAGG_BENCH_COMMON_MUST_H_
#define SPARSEAGG_BENCH_COMMON_MUST_H_

#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparseagg::bench {

// Throws: std::runtime_error with the status, if it is not OK.
inline void Check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

// Returns: the value.
// Throws: std::runtime_error if there is none.
template <typename T>
T Must(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_MUST_H_
