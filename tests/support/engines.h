// The engines that the contract suite runs on.
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

// An engine by name.
struct EngineCase {
  std::string name;  // letters and digits, for test names
  std::function<std::unique_ptr<Engine>()> create;
  // With TinyTuning: a million tuples would take it minutes.
  bool tiny_pieces = false;
};

inline void PrintTo(const EngineCase& engine, std::ostream* out) { *out << engine.name; }

// Returns: the engines that work on this machine: the CPU engine with one and with four threads, and on each SIMD
// target; the CUDA engine over a device in host memory; and the CUDA engine over a GPU, if there is one, with the sizes
// of a real device and, for each path, with tiny sizes.
std::vector<EngineCase> AvailableEngines();

// Returns: sizes of the CUDA engine with which small inputs reach every boundary: staging buffers, medium and long
// segments, checks, merges.
cuda::Tuning TinyTuning();
// Returns: the CUDA engine with tiny sizes over a host device in torture mode. With `tiles` it takes the tile path
// wherever possible, otherwise the sort path. `num_devices`: so many such devices.
std::unique_ptr<Engine> TortureEngine(uint64_t seed, bool tiles, int num_devices = 1);

// Returns: why AvailableEngines has no engine over a GPU; OK if it has one.
absl::Status CudaStatus();

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_ENGINES_H_
