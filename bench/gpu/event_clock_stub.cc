// Stands in for the clock in builds without CUDA.
#include <stdexcept>

#include "bench/gpu/span_clock.h"

namespace sparseagg::bench {

std::unique_ptr<SpanClock> MakeEventClock(cuda::Device&) { throw std::runtime_error("this build has no CUDA"); }

}  // namespace sparseagg::bench
