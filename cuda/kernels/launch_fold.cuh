// The definition of LaunchFold (launch.h). CMake generates a source for each fold from fold.cu.in, which instantiates
// it.
#ifndef SPARSEAGG_CUDA_KERNELS_LAUNCH_FOLD_CUH_
#define SPARSEAGG_CUDA_KERNELS_LAUNCH_FOLD_CUH_

#include "cuda/kernels/fold_listed.h"
#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/tile_body.h"

namespace sparseagg::cuda {

template <typename Fold>
cudaError_t LaunchFold(const FoldValues& args, cudaStream_t stream) {
  cudaError_t error = RunShortSegments<Fold>(args, [&](const auto& kernel) { return LaunchElements(kernel, stream); });
  if (error == cudaSuccess) error = LaunchBlocks(FoldListedSegments<Fold, kWarpThreads>{args}, stream);
  if (error == cudaSuccess) error = LaunchBlocks(FoldListedSegments<Fold, kBlockThreads>{args}, stream);
  return error;
}

template <typename Fold>
cudaError_t LaunchFold(const FoldTiles& args, cudaStream_t stream) {
  return RunTiles<Fold>(args, [&](const auto& kernel) { return LaunchBlocks(kernel, stream); });
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_LAUNCH_FOLD_CUH_
