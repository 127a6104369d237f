#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/order.h"

namespace sparseagg::cuda {

cudaError_t Launch(const NumberSegments& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const RankValues& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const PickStatistics& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

}  // namespace sparseagg::cuda
