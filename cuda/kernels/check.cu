#include "cuda/kernels/check.h"
#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

cudaError_t Launch(const CheckTerms& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

}  // namespace sparseagg::cuda
