#include "cuda/kernels/launch_fold.cuh"

namespace sparseagg::cuda {

template cudaError_t LaunchFold<SumModular>(const FoldValues&, cudaStream_t);
template cudaError_t LaunchFold<SumModular>(const FoldTiles&, cudaStream_t);

}  // namespace sparseagg::cuda
