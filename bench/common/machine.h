// What the machine can do at best, measured in the run that quotes it.
#ifndef SPARSEAGG_BENCH_COMMON_MACHINE_H_
#define SPARSEAGG_BENCH_COMMON_MACHINE_H_

#include <cstdint>
#include <string>

namespace sparseagg::bench {

struct MemorySpeed {
  double read_bytes_per_s = 0;    // summing 256 MiB, one thread
  double memcpy_bytes_per_s = 0;  // bytes copied (each is read once and written once), warm target, one thread
};

// The medians of several passes.
MemorySpeed MeasureMemory();

// Seconds of a clock that never goes back.
double Now();

// The date in UTC, such as "2026-01-31".
std::string Today();

// The processor's name, as the system gives it, with its family and model (x86).
std::string CpuName();

// High-water mark of the process's resident memory, and setting it back to what is resident now (false where the system
// does not allow that).
uint64_t PeakMemoryBytes();
bool ResetPeakMemory();

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_MACHINE_H_
