// Counts the bytes that kernels access in device memory, as they run on the host.
#ifndef SPARSEAGG_BENCH_GPU_TRAFFIC_ACCESS_COUNTER_H_
#define SPARSEAGG_BENCH_GPU_TRAFFIC_ACCESS_COUNTER_H_

#include <cstdint>

namespace sparseagg::bench {

// Memory moves in sectors of 32 bytes. A thread block moves each sector once, since the L1 cache holds what its threads
// share; blocks share nothing. So scattered accesses count as whole sectors, and accesses of neighbours once. What the
// L2 cache saves on top is not counted.
inline constexpr uint64_t kSectorBytes = 32;

struct Traffic {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
};

// Starts counting for the calling thread. Memory on its stack is not counted: the executor keeps there what is in
// registers and in shared memory on a device.
void StartCounting();
// Returns: the traffic since StartCounting or TakeTraffic.
Traffic TakeTraffic();
// Begins the next thread block.
void BeginBlock();
// Adds traffic that is known without counting.
void AddTraffic(const Traffic& traffic);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_GPU_TRAFFIC_ACCESS_COUNTER_H_
