#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

cudaError_t Launch(const ExpandRun& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const Enumerate& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const GatherSegments& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

}  // namespace sparseagg::cuda
