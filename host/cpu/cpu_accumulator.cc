#include "host/cpu/cpu_accumulator.h"

#include "host/cpu/order/order_accumulator.h"
#include "host/cpu/rows/fold.h"

namespace sparseagg::cpu {

// Defined in typed_accumulator.h; instantiated in float_sums.cc, fixed_sums.cc, integer_folds.cc and extrema.cc.
template <typename Fold>
std::unique_ptr<Accumulator> MakeTypedAccumulator(const TensorSpec& spec, tbb::task_arena& arena);

std::unique_ptr<Accumulator> MakeCpuAccumulator(const TensorSpec& spec, tbb::task_arena& arena) {
  switch (spec.aggregation.op) {
    case Op::kUnion:
      return MakeTypedAccumulator<SumFixed>(spec, arena);  // no columns: nothing is summed but counts
    case Op::kMin:
      return IsFloat(spec.dtype) ? MakeTypedAccumulator<MinFloat>(spec, arena)
                                 : MakeTypedAccumulator<MinInteger>(spec, arena);
    case Op::kMax:
      return IsFloat(spec.dtype) ? MakeTypedAccumulator<MaxFloat>(spec, arena)
                                 : MakeTypedAccumulator<MaxInteger>(spec, arena);
    case Op::kMedian:
    case Op::kTrimmedMean:
    case Op::kQuantile:
      return MakeOrderAccumulator(spec, arena);
    case Op::kSum:
    case Op::kMean:
    case Op::kCoordinateMean:
      break;
  }
  if (spec.modular) return MakeTypedAccumulator<SumModular>(spec, arena);
  if (IsSignedInteger(spec.dtype)) return MakeTypedAccumulator<SumInteger>(spec, arena);
  return UsesFixedPoint(spec) ? MakeTypedAccumulator<SumFixed>(spec, arena)
                              : MakeTypedAccumulator<SumFloat>(spec, arena);
}

}  // namespace sparseagg::cpu
