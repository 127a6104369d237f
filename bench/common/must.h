// Benchmarks end at the first error.
#ifndef SPARSEAGG_BENCH_COMMON_MUST_H_
#define SPARSEAGG_BENCH_COMMON_MUST_H_

#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparseagg::bench {

// Throw std::runtime_error with the status.
inline void Check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_MUST_H_
