#include "host/cpu/cpu_accumulator.h"

#include "host/cpu/fold.h"

namespace sparseagg::cpu {

// Of typed_accumulator.h, which the sources that instantiate it include.
template <typename Fold>
std::unique_ptr<Accumulator> MakeTypedAccumulator(const TensorSpec& spec, tbb::task_arena& arena, size_t waiting_bytes);

std::unique_ptr<Accumulator> MakeCpuAccumulator(const TensorSpec& spec, tbb::task_arena& arena, size_t waiting_bytes) {
  switch (spec.aggregation.op) {
    case Op::kUnion:
      return MakeTypedAccumulator<SumFixed>(spec, arena, waiting_bytes);  // no columns: nothing is summed but counts
    case Op::kMin:
      return IsFloat(spec.dtype) ? MakeTypedAccumulator<MinFloat>(spec, arena, waiting_bytes)
                                 : MakeTypedAccumulator<MinInteger>(spec, arena, waiting_bytes);
    case Op::kMax:
      return IsFloat(spec.dtype) ? MakeTypedAccumulator<MaxFloat>(spec, arena, waiting_bytes)
                                 : MakeTypedAccumulator<MaxInteger>(spec, arena, waiting_bytes);
    case Op::kSum:
    case Op::kMean:
    case Op::kCoordinateMean:
      break;
  }
  if (spec.modular) return MakeTypedAccumulator<SumModular>(spec, arena, waiting_bytes);
  if (IsSignedInteger(spec.dtype)) return MakeTypedAccumulator<SumInteger>(spec, arena, waiting_bytes);
  return UsesFixedPoint(spec) ? MakeTypedAccumulator<SumFixed>(spec, arena, waiting_bytes)
                              : MakeTypedAccumulator<SumFloat>(spec, arena, waiting_bytes);
}

}  // namespace sparseagg::cpu
