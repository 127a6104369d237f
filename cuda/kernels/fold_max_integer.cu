#include "cuda/kernels/launch_fold.cuh"

namespace sparseagg::cuda {

template cudaError_t LaunchFold<MaxInteger>(const FoldValues&, cudaStream_t);
template cudaError_t LaunchFold<MaxInteger>(const FoldTiles&, cudaStream_t);

}  // namespace sparseagg::cuda
