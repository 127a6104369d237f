#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

cudaError_t Launch(const FlagKeptRows& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const FlagNonzeroRows& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const DropZeroRows& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const WriteResult& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const FillValues& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

}  // namespace sparseagg::cuda
