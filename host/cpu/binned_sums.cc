#include "host/cpu/typed_accumulator.h"

namespace sparseagg::cpu {

template std::unique_ptr<Accumulator> MakeTypedAccumulator<SumBinned<NarrowBinnedSum>>(const TensorSpec&,
                                                                                       tbb::task_arena&);
template std::unique_ptr<Accumulator> MakeTypedAccumulator<SumBinned<WideBinnedSum>>(const TensorSpec&,
                                                                                     tbb::task_arena&);

}  // namespace sparseagg::cpu
