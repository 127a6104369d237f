// The folds of sources (fold.h), which tiles do without.
#include "cuda/kernels/launch_fold.cuh"

namespace sparseagg::cuda {

template cudaError_t LaunchFold<CountSources>(const FoldValues&, cudaStream_t);
template cudaError_t LaunchFold<SumWeights>(const FoldValues&, cudaStream_t);
template cudaError_t LaunchFold<SumBinnedWeights>(const FoldValues&, cudaStream_t);

}  // namespace sparseagg::cuda
