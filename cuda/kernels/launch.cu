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

// What reads over the link waits for it most of the time, and few blocks have enough words under way to keep it busy.
// The others leave the multiprocessors to merges.
constexpr uint64_t kLinkBlocks = 256;

cudaError_t Launch(const Fetch& kernel, cudaStream_t stream) {
  return LaunchElements(kernel, stream, kernel.reads_host ? kLinkBlocks : kMaxGridBlocks);
}

cudaError_t Launch(const FoldValues& args, cudaStream_t stream) {
  return WithFold(args.kind, [&](auto fold) { return LaunchFold<decltype(fold)>(args, stream); });
}
cudaError_t Launch(const FoldTiles& args, cudaStream_t stream) {
  return WithFoldOfValues(args.kind, [&](auto fold) { return LaunchFold<decltype(fold)>(args, stream); });
}

}  // namespace sparseagg::cuda
