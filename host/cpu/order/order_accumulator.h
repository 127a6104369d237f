// Accumulator of the CPU engine for order statistics.
#ifndef SPARSEAGG_HOST_CPU_ORDER_ORDER_ACCUMULATOR_H_
#define SPARSEAGG_HOST_CPU_ORDER_ORDER_ACCUMULATOR_H_

#include <tbb/task_arena.h>

#include <memory>

#include "host/engine.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Returns: an empty accumulator of a tensor whose op is an order statistic. It keeps all updates until Finish, and
// refuses FoldPending. `arena` runs its merge and must outlive it.
std::unique_ptr<Accumulator> MakeOrderAccumulator(const TensorSpec& spec, tbb::task_arena& arena);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_ORDER_ACCUMULATOR_H_
