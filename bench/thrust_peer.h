// What people have on a GPU: Thrust's sort_by_key and reduce_by_key, in the values' own float32.
#ifndef SPARSEAGG_BENCH_THRUST_PEER_H_
#define SPARSEAGG_BENCH_THRUST_PEER_H_

#include <cstdint>
#include <vector>

namespace sparseagg::bench {

// Seconds of each of `repetitions` runs on tuples that are on the device already, after one that is not counted.
// std::runtime_error when CUDA fails or the build has none.
std::vector<double> ThrustSortReduceSeconds(const std::vector<uint32_t>& keys, const std::vector<float>& values,
                                            int repetitions);
std::vector<double> ThrustSortReduceSeconds(const std::vector<uint64_t>& keys, const std::vector<float>& values,
                                            int repetitions);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_THRUST_PEER_H_
