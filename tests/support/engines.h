// The engines that the contract suite runs against.
#ifndef SPARSEAGG_TESTS_SUPPORT_ENGINES_H_
#define SPARSEAGG_TESTS_SUPPORT_ENGINES_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/tuning.h"
#include "host/engine.h"

namespace sparseagg::testing {

struct EngineCase {
  std::string name;  // letters and digits, for test names
  std::function<std::unique_ptr<Engine>()> create;
};

inline void PrintTo(const EngineCase& engine, std::ostream* out) { *out << engine.name; }

// Engines that work on this machine: the CPU engine with one and with two threads, and on each SIMD target; the CUDA
// engine over a device in host memory, and, where there is a device, CUDA.
std::vector<EngineCase> AvailableEngines();

// Sizes of the CUDA engine that make small inputs meet every boundary: staging slots, long segments, checks, merges.
cuda::Tuning TinyTuning();
// The CUDA engine over a host device that is as unhelpful as it may be, with tiny sizes. With `tiles` it takes the tile
// path wherever that is possible, else the sort path.
std::unique_ptr<Engine> TortureEngine(uint64_t seed, bool tiles);

// Why the CUDA engine is not among them; OK when it is.
absl::Status CudaStatus();

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_ENGINES_H_
