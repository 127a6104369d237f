// The launcher of all kernels; folds, sorts and selections have files of their own.
#include <variant>

#include "cuda/kernels/grid.cuh"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {
namespace {

template <typename Kernel>
cudaError_t LaunchOne(const Kernel& kernel, cudaStream_t stream) {
  return LaunchElements(kernel, stream);
}
cudaError_t LaunchOne(const ListParts& kernel, cudaStream_t stream) { return LaunchBlocks(kernel, stream); }
cudaError_t LaunchOne(const ImportUpdates& kernel, cudaStream_t stream) { return LaunchBlocks(kernel, stream); }

// What reads over the link waits for it most of the time, and few blocks have enough words under way to keep it busy.
// The others leave the multiprocessors to merges.
constexpr uint64_t kLinkBlocks = 256;

cudaError_t LaunchOne(const Fetch& kernel, cudaStream_t stream) {
  return LaunchElements(kernel, stream, kernel.reads_host ? kLinkBlocks : kMaxGridBlocks);
}
cudaError_t LaunchOne(const FoldValues& args, cudaStream_t stream) {
  return WithFold(args.kind, [&](auto fold) { return LaunchFold<decltype(fold)>(args, stream); });
}
cudaError_t LaunchOne(const FoldTiles& args, cudaStream_t stream) {
  return WithFoldOfValues(args.kind, [&](auto fold) { return LaunchFold<decltype(fold)>(args, stream); });
}

}  // namespace

cudaError_t Launch(const KernelCall& call, cudaStream_t stream) {
  return std::visit([stream](const auto& kernel) { return LaunchOne(kernel, stream); }, call);
}

}  // namespace sparseagg::cuda
