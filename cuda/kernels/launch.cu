// Launchers of the kernels that compile in a moment, and of the fold that matches a FoldKind; folds, sorts and
// selections have files of their own.
#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

template <typename Kernel>
cudaError_t Launch(const Kernel& kernel, cudaStream_t stream) {
  return LaunchElements(kernel, stream);
}
template cudaError_t Launch(const ExpandRun&, cudaStream_t);
template cudaError_t Launch(const GatherSegments&, cudaStream_t);
template cudaError_t Launch(const CopyWords&, cudaStream_t);
template cudaError_t Launch(const FlagKeptRows&, cudaStream_t);
template cudaError_t Launch(const FlagNonzeroRows&, cudaStream_t);
template cudaError_t Launch(const WriteResult&, cudaStream_t);
template cudaError_t Launch(const FillValues&, cudaStream_t);
template cudaError_t Launch(const FindTileBounds&, cudaStream_t);
template cudaError_t Launch(const FindPartBounds&, cudaStream_t);
cudaError_t Launch(const ListParts& kernel, cudaStream_t stream) { return LaunchBlocks(kernel, stream); }
cudaError_t Launch(const ImportUpdates& kernel, cudaStream_t stream) { return LaunchBlocks(kernel, stream); }

namespace {

template <class WeightSum>
cudaError_t LaunchCounts(const Contributors& args, cudaStream_t stream) {
  cudaError_t error = LaunchElements(CountShortSegments<WeightSum>{args}, stream);
  if (error == cudaSuccess) error = LaunchBlocks(CountListedSegments<WeightSum, kWarpThreads>{args}, stream);
  if (error == cudaSuccess) error = LaunchBlocks(CountListedSegments<WeightSum, kBlockThreads>{args}, stream);
  return error;
}

}  // namespace

cudaError_t Launch(const Contributors& args, cudaStream_t stream) {
  return args.weights == WeightKind::kBinned ? LaunchCounts<BinnedWeightSum>(args, stream)
                                             : LaunchCounts<FloatWeightSum>(args, stream);
}

// What reads over the link waits for it most of the time, and few blocks have enough words under way to keep it busy.
// The others leave the multiprocessors to merges.
constexpr uint64_t kLinkBlocks = 256;

cudaError_t Launch(const Fetch& kernel, cudaStream_t stream) {
  return LaunchElements(kernel, stream, kernel.reads_host ? kLinkBlocks : kMaxGridBlocks);
}

namespace {

template <typename Args>
cudaError_t LaunchFoldOf(const Args& args, cudaStream_t stream) {
  switch (args.kind) {
    case FoldKind::kSumFloat:
      return LaunchFold<SumFloat>(args, stream);
    case FoldKind::kSumInteger:
      return LaunchFold<SumInteger>(args, stream);
    case FoldKind::kSumModular:
      return LaunchFold<SumModular>(args, stream);
    case FoldKind::kMinFloat:
      return LaunchFold<MinFloat>(args, stream);
    case FoldKind::kMaxFloat:
      return LaunchFold<MaxFloat>(args, stream);
    case FoldKind::kMinInteger:
      return LaunchFold<MinInteger>(args, stream);
    case FoldKind::kMaxInteger:
      return LaunchFold<MaxInteger>(args, stream);
    case FoldKind::kSumNarrowBinned:
      return LaunchFold<SumNarrowBinned>(args, stream);
    case FoldKind::kSumWideBinned:
      return LaunchFold<SumWideBinned>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t Launch(const FoldValues& args, cudaStream_t stream) { return LaunchFoldOf(args, stream); }
cudaError_t Launch(const FoldTiles& args, cudaStream_t stream) { return LaunchFoldOf(args, stream); }

}  // namespace sparseagg::cuda
