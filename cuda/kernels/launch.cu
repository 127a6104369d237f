// Launchers of the kernels that compile in a moment; those of folds, sorts and selections have files of their own.
#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

cudaError_t Launch(const ExpandRun& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const Enumerate& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const GatherSegments& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

cudaError_t Launch(const Contributors& args, cudaStream_t stream) {
  cudaError_t error = LaunchElements(CountShortSegments{args}, stream);
  if (error == cudaSuccess) error = LaunchBlocks(CountListedSegments<kWarpThreads>{args}, stream);
  if (error == cudaSuccess) error = LaunchBlocks(CountListedSegments<kBlockThreads>{args}, stream);
  return error;
}

cudaError_t Launch(const NumberSegments& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const RankValues& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const PickStatistics& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

cudaError_t Launch(const CheckTerms& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

cudaError_t Launch(const ImportKeys& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const CheckFinite& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

cudaError_t Launch(const Fetch& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const CopyWords& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

cudaError_t Launch(const FlagKeptRows& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const FlagNonzeroRows& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const DropZeroRows& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const WriteResult& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const FillValues& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

cudaError_t Launch(const FindTileBounds& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }
cudaError_t Launch(const PlanTiles& kernel, cudaStream_t stream) { return LaunchBlocks(kernel, stream); }
cudaError_t Launch(const FindPartBounds& kernel, cudaStream_t stream) { return LaunchElements(kernel, stream); }

}  // namespace sparseagg::cuda
