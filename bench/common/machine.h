// The machine: its name and its clocks.
#ifndef SPARSEAGG_BENCH_COMMON_MACHINE_H_
#define SPARSEAGG_BENCH_COMMON_MACHINE_H_

#include <string>

namespace sparseagg::bench {

// Returns: seconds of a monotonic clock.
double Now();

// Returns: the date in UTC, such as "2026-01-31".
std::string Today();

// Returns: the processor's name as the system gives it, with family and model (x86).
std::string CpuName();

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_MACHINE_H_
