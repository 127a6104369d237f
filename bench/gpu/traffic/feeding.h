// The model of a round that is fed from host memory.
#ifndef SPARSEAGG_BENCH_GPU_TRAFFIC_FEEDING_H_
#define SPARSEAGG_BENCH_GPU_TRAFFIC_FEEDING_H_

#include <algorithm>
#include <cstdint>

#include "bench/common/reference_sum.h"
#include "bench/common/workloads.h"
#include "bench/gpu/traffic/timeline_device.h"
#include "cuda/tuning.h"

namespace sparseagg::bench {

struct Feeding {
  Timeline timeline;  // of the round, from validated updates in host memory to the result there
  uint64_t num_tuples = 0;

  double seconds() const { return std::max(timeline.host, timeline.copies); }
  double tuples_per_s() const { return static_cast<double>(num_tuples) / seconds(); }
  // What the busier direction of the link alone would take, of the time.
  double LinkShare() const;
};

// Runs the engine on a TimelineDevice. The result is verified against `expected`; std::runtime_error if it is wrong.
Feeding ModelFeeding(const Workload& workload, const CanonicalSums& expected, const cuda::Tuning& tuning);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_GPU_TRAFFIC_FEEDING_H_
