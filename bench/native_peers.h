// What people have on a GPU in native code, in the values' own float32: no canonical order, no counts.
#ifndef SPARSEAGG_BENCH_NATIVE_PEERS_H_
#define SPARSEAGG_BENCH_NATIVE_PEERS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace sparseagg::bench {

struct PeerRun {
  std::string name;             // "thrust": sort_by_key and reduce_by_key; "cub": DeviceRadixSort on the bits that
                                // the keys need, and DeviceReduce::ReduceByKey, with their scratch allocated before
  std::vector<double> seconds;  // of events on the stream
  uint64_t num_rows = 0;        // keys it found
  double total = 0;             // of all its values
};

// Each peer, `repetitions` times after one run that is not counted, on tuples that are on the device already and not in
// its L2. Keys have `key_bits` bits. std::runtime_error when CUDA fails or the build has none.
std::vector<PeerRun> RunNativePeers(const std::vector<uint32_t>& keys, const std::vector<float>& values, int key_bits,
                                    int repetitions);
std::vector<PeerRun> RunNativePeers(const std::vector<uint64_t>& keys, const std::vector<float>& values, int key_bits,
                                    int repetitions);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_NATIVE_PEERS_H_
