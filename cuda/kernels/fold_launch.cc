// Launchers of the fold that matches a FoldKind.
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

namespace {

template <typename Args>
cudaError_t LaunchFoldOf(const Args& args, cudaStream_t stream) {
  switch (args.kind) {
    case FoldKind::kSumFloat:
      return LaunchFold<SumFloat>(args, stream);
    case FoldKind::kSumFixed:
      return LaunchFold<SumFixed>(args, stream);
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
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t Launch(const FoldValues& args, cudaStream_t stream) { return LaunchFoldOf(args, stream); }
cudaError_t Launch(const FoldTiles& args, cudaStream_t stream) { return LaunchFoldOf(args, stream); }

}  // namespace sparseagg::cuda
