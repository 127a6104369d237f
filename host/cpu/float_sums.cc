#include "host/cpu/typed_accumulator.h"

namespace sparseagg::cpu {

template std::unique_ptr<Accumulator> MakeTypedAccumulator<SumFloat>(const TensorSpec&, tbb::task_arena&);

}  // namespace sparseagg::cpu
