// One tensor's state on the CPU.
#ifndef SPARSEAGG_HOST_CPU_CPU_ACCUMULATOR_H_
#define SPARSEAGG_HOST_CPU_CPU_ACCUMULATOR_H_

#include <tbb/task_arena.h>

#include <memory>

#include "absl/status/statusor.h"
#include "host/engine.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// `arena` runs the merges; it must outlive the accumulator.
std::unique_ptr<Accumulator> MakeCpuAccumulator(const TensorSpec& spec, tbb::task_arena& arena);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_CPU_ACCUMULATOR_H_
