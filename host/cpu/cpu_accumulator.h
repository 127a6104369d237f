// Accumulators of the CPU engine.
#ifndef SPARSEAGG_HOST_CPU_CPU_ACCUMULATOR_H_
#define SPARSEAGG_HOST_CPU_CPU_ACCUMULATOR_H_

#include <tbb/task_arena.h>

#include <memory>

#include "absl/status/statusor.h"
#include "host/engine.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Returns: an empty accumulator for one tensor, of the type (key type and fold) that its spec needs. `arena` runs its
// merges and must outlive it.
std::unique_ptr<Accumulator> MakeCpuAccumulator(const TensorSpec& spec, tbb::task_arena& arena);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_CPU_ACCUMULATOR_H_
