// One tensor's state on the CPU.
#ifndef SPARSEAGG_HOST_CPU_CPU_ACCUMULATOR_H_
#define SPARSEAGG_HOST_CPU_CPU_ACCUMULATOR_H_

#include <tbb/task_arena.h>

#include <memory>

#include "absl/status/statusor.h"
#include "host/engine.h"
#include "host/spec.h"

namespace sparseagg::cpu {

// `arena` runs the merges; it must outlive the accumulator. Updates that merge on arrival wait until there are
// `waiting_bytes` of them, or as much as has been merged.
std::unique_ptr<Accumulator> MakeCpuAccumulator(const TensorSpec& spec, tbb::task_arena& arena, size_t waiting_bytes);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_CPU_ACCUMULATOR_H_
