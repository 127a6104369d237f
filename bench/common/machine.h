// The machine: its name and its clocks; and errors of benchmarks, which end at the first one.
#ifndef SPARSEAGG_BENCH_COMMON_MACHINE_H_
#define SPARSEAGG_BENCH_COMMON_MACHINE_H_

#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparseagg::bench {

// Returns: seconds of a monotonic clock.
double Now();

// Returns: the date in UTC, such as "2026-01-31".
std::string Today();

// Returns: the processor's name as the system gives it, with family and model (x86).
std::string CpuName();

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

#endif  // SPARSEAGG_BENCH_COMMON_MACHINE_H_
