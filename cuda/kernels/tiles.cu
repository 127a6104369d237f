#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/tiles.h"

namespace sparseagg::cuda {

cudaError_t Launch(const FindTileBounds& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const GatherTouched& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

}  // namespace sparseagg::cuda
