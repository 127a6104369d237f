// The accumulators of the CPU engine. `arena` runs their merges and must outlive them.
#ifndef SPARSEAGG_HOST_CPU_ACCUMULATORS_H_
#define SPARSEAGG_HOST_CPU_ACCUMULATORS_H_

#include <tbb/task_arena.h>

#include <memory>

#include "host/engine.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// For one of the folds of rows/fold.h. Defined in typed_accumulator.h; instantiated in float_sums.cc, binned_sums.cc,
// integer_folds.cc and extrema.cc, so that they compile side by side.
template <typename Fold>
std::unique_ptr<Accumulator> MakeTypedAccumulator(const TensorSpec& spec, tbb::task_arena& arena);

// For Numerics::kBinned of a tensor of layout dense.
std::unique_ptr<Accumulator> MakeBinnedAccumulator(const TensorSpec& spec, tbb::task_arena& arena);

// For order statistics: keeps all updates until Finish, and refuses FoldPending.
std::unique_ptr<Accumulator> MakeOrderAccumulator(const TensorSpec& spec, tbb::task_arena& arena);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ACCUMULATORS_H_
