#include "bench/gpu/native_peers.cuh"  // allow(include): a benchmark's own kernels

namespace sparseagg::bench {

std::vector<PeerRun> RunNativePeers(const std::vector<uint32_t>& keys, const std::vector<float>& values, int key_bits,
                                    int repetitions, const RowCheck<uint32_t>& check) {
  return native_peers::Run(keys, values, key_bits, repetitions, check);
}

}  // namespace sparseagg::bench
