#include "cuda/kernels/launch_fold.cuh"

namespace sparseagg::cuda {

template cudaError_t LaunchFold<SumInteger>(const FoldValues&, cudaStream_t);

}  // namespace sparseagg::cuda
