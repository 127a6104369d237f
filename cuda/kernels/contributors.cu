#include "cuda/kernels/contributors.h"
#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

cudaError_t Launch(const Contributors& args, cudaStream_t stream) {
  cudaError_t error = LaunchElements(CountShortSegments{args}, stream);
  if (error == cudaSuccess) error = LaunchBlocks(CountListedSegments<kWarpThreads>{args}, stream);
  if (error == cudaSuccess) error = LaunchBlocks(CountListedSegments<kBlockThreads>{args}, stream);
  return error;
}

}  // namespace sparseagg::cuda
