// Accumulator of binned sums of dense tensors.
#ifndef SPARSEAGG_HOST_CPU_DENSE_BINNED_ACCUMULATOR_H_
#define SPARSEAGG_HOST_CPU_DENSE_BINNED_ACCUMULATOR_H_

#include <tbb/task_arena.h>

#include <memory>

#include "host/engine.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Makes an empty accumulator for a tensor with Numerics::kBinned. `arena` runs its merges and must outlive it.
std::unique_ptr<Accumulator> MakeBinnedAccumulator(const TensorSpec& spec, tbb::task_arena& arena);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_DENSE_BINNED_ACCUMULATOR_H_
