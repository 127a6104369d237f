#include "cuda/kernels/launch_fold.cuh"

namespace sparseagg::cuda {

template cudaError_t LaunchFold<SumFloat>(const FoldValues&, cudaStream_t);
template cudaError_t LaunchFold<SumFloat>(const FoldTiles&, cudaStream_t);

}  // namespace sparseagg::cuda
