// What people have on a GPU in native code, in the values' own float32: no canonical order, no counts.
#ifndef SPARSEAGG_BENCH_GPU_NATIVE_PEERS_H_
#define SPARSEAGG_BENCH_GPU_NATIVE_PEERS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sparseagg::bench {

struct PeerRun {
  std::string name;             // "thrust": sort_by_key and reduce_by_key; "cub": DeviceRadixSort on the bits that
                                // the keys need, and DeviceReduce::ReduceByKey, with their scratch allocated before
  std::vector<double> seconds;  // of events on the stream
  uint64_t num_rows = 0;        // keys it found
  std::string failure;          // why there are no seconds; empty if there are
};

// Says what is wrong with rows, of ascending keys; nothing if they are right.
template <typename Key>
using RowCheck = std::function<std::string(const std::vector<Key>& keys, const std::vector<float>& sums)>;

// Each peer, `repetitions` times after one run that is not counted, and whose rows are checked, on tuples that are on
// the device already and not in its L2. Keys have `key_bits` bits. A peer that is wrong or fails says so in its run;
// std::runtime_error when there is no memory for the tuples, or no CUDA in the build.
std::vector<PeerRun> RunNativePeers(const std::vector<uint32_t>& keys, const std::vector<float>& values, int key_bits,
                                    int repetitions, const RowCheck<uint32_t>& check);
std::vector<PeerRun> RunNativePeers(const std::vector<uint64_t>& keys, const std::vector<float>& values, int key_bits,
                                    int repetitions, const RowCheck<uint64_t>& check);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_GPU_NATIVE_PEERS_H_
