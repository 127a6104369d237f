// Stands in for the peer in builds without CUDA.
#include <stdexcept>

#include "bench/thrust_peer.h"

namespace sparseagg::bench {

std::vector<double> ThrustSortReduceSeconds(const std::vector<uint32_t>&, const std::vector<float>&, int) {
  throw std::runtime_error("this build has no CUDA");
}
std::vector<double> ThrustSortReduceSeconds(const std::vector<uint64_t>&, const std::vector<float>&, int) {
  throw std::runtime_error("this build has no CUDA");
}

}  // namespace sparseagg::bench
