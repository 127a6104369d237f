#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/tile_plan.h"

namespace sparseagg::cuda {

cudaError_t Launch(const FindTileBounds& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const PlanTiles& kernel, cudaStream_t stream) { return LaunchBlocks(kernel, stream); }
cudaError_t Launch(const FindPartBounds& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

}  // namespace sparseagg::cuda
