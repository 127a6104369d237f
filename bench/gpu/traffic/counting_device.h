// A host device that counts the memory traffic of its compute lane.
#ifndef SPARSEAGG_BENCH_GPU_TRAFFIC_COUNTING_DEVICE_H_
#define SPARSEAGG_BENCH_GPU_TRAFFIC_COUNTING_DEVICE_H_

#include <memory>

#include "cuda/device/device.h"

namespace sparseagg::bench {

// The traffic of kernels is counted access by access (access_counter.h). The traffic of the sort and the selection is
// what CUB's algorithms move: a histogram of the keys, then one read and one write of keys and positions for every 8
// bits; the flags or keys, and the indices that are selected.
std::unique_ptr<cuda::Device> MakeCountingDevice();

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_GPU_TRAFFIC_COUNTING_DEVICE_H_
