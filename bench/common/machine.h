// The machine: its name, memory speed, clock and memory use, measured in the run that quotes them.
#ifndef SPARSEAGG_BENCH_COMMON_MACHINE_H_
#define SPARSEAGG_BENCH_COMMON_MACHINE_H_

#include <cstdint>
#include <string>

namespace sparseagg::bench {

struct MemorySpeed {
  double read_bytes_per_s = 0;    // summing 256 MiB, one thread
  double memcpy_bytes_per_s = 0;  // bytes copied (each is read once and written once), warm target, one thread
};

// Returns: the medians of several passes.
MemorySpeed MeasureMemory();

// Returns: seconds of a monotonic clock.
double Now();

// Returns: the date in UTC, such as "2026-01-31".
std::string Today();

// Returns: the processor's name as the system gives it, with family and model (x86).
std::string CpuName();

// Returns: the peak of the process's resident memory.
uint64_t PeakMemoryBytes();

// Sets the peak to the current resident memory.
// Returns: false if the system does not allow it.
bool ResetPeakMemory();

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_MACHINE_H_
