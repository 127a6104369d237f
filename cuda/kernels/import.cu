#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/import.h"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

cudaError_t Launch(const ImportKeys& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const CheckFinite& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

}  // namespace sparseagg::cuda
