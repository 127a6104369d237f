// Times pieces of work on a device's compute lane.
#ifndef SPARSEAGG_BENCH_GPU_SPAN_CLOCK_H_
#define SPARSEAGG_BENCH_GPU_SPAN_CLOCK_H_

#include <map>
#include <memory>
#include <string>

#include "cuda/device/device.h"

namespace sparseagg::bench {

// Spans lie one behind the other. One thread at a time.
class SpanClock {
 public:
  virtual ~SpanClock() = default;

  virtual void Begin() = 0;
  virtual void End(const std::string& name) = 0;
  // Seconds by name, of all spans since the last call. The lane must be idle.
  virtual std::map<std::string, double> Collect() = 0;
};

// By the host's clock, for a device that works at once.
std::unique_ptr<SpanClock> MakeHostClock();

// By events on the compute stream of `device`, which is one of cuda::CreateCudaDevice and must outlive the clock: what
// the GPU takes, without the gaps between. std::runtime_error when CUDA fails or the build has none.
std::unique_ptr<SpanClock> MakeEventClock(cuda::Device& device);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_GPU_SPAN_CLOCK_H_
