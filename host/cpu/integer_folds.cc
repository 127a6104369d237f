#include "host/cpu/typed_accumulator.h"

namespace sparseagg::cpu {

template std::unique_ptr<Accumulator> MakeTypedAccumulator<SumInteger>(const TensorSpec&, tbb::task_arena&);
template std::unique_ptr<Accumulator> MakeTypedAccumulator<SumModular>(const TensorSpec&, tbb::task_arena&);
template std::unique_ptr<Accumulator> MakeTypedAccumulator<MinInteger>(const TensorSpec&, tbb::task_arena&);
template std::unique_ptr<Accumulator> MakeTypedAccumulator<MaxInteger>(const TensorSpec&, tbb::task_arena&);

}  // namespace sparseagg::cpu
