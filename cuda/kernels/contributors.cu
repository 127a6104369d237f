#include "cuda/kernels/contributors.h"
#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

cudaError_t Launch(const Contributors& args, cudaStream_t stream) {
  const cudaError_t error = LaunchElements(CountShortSegments{args}, stream);
  return error != cudaSuccess ? error : LaunchBlocks(CountLongSegments{args}, stream);
}

}  // namespace sparseagg::cuda
