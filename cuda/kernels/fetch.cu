#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

cudaError_t Launch(const Fetch& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const CopyWords& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

}  // namespace sparseagg::cuda
