// Stands in for the clock and the peers in builds without CUDA.
#include <stdexcept>

#include "bench/gpu/native_peers.h"
#include "bench/gpu/watched_device.h"

namespace sparseagg::bench {

std::unique_ptr<SpanClock> MakeEventClock(cuda::Device&) { throw std::runtime_error("this build has no CUDA"); }

std::vector<PeerRun> RunNativePeers(const std::vector<uint32_t>&, const std::vector<float>&, int, int,
                                    const RowCheck<uint32_t>&) {
  throw std::runtime_error("this build has no CUDA");
}
std::vector<PeerRun> RunNativePeers(const std::vector<uint64_t>&, const std::vector<float>&, int, int,
                                    const RowCheck<uint64_t>&) {
  throw std::runtime_error("this build has no CUDA");
}

}  // namespace sparseagg::bench
