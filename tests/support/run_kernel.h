// Runs a kernel call on the host, with an executor of kernel bodies.
#ifndef SPARSEAGG_TESTS_SUPPORT_RUN_KERNEL_H_
#define SPARSEAGG_TESTS_SUPPORT_RUN_KERNEL_H_

#include <variant>

#include "cuda/device/device.h"
#include "cuda/kernels/fold_listed.h"
#include "cuda/kernels/tile_body.h"

namespace sparseagg::cuda {

// An Executor has RunElements(kernel) and RunBlocks(kernel), for the two sorts of kernel (kernels/block.h). A program
// includes this header once for each executor, because it instantiates every kernel with every fold.

template <typename Fold, typename Executor>
void RunFold(const FoldValues& args, Executor& executor) {
  RunShortSegments<Fold>(args, [&executor](const auto& kernel) { executor.RunElements(kernel); });
  executor.RunBlocks(FoldListedSegments<Fold, kWarpThreads>{args});
  executor.RunBlocks(FoldListedSegments<Fold, kBlockThreads>{args});
}

template <typename Fold, typename Executor>
void RunFold(const FoldTiles& args, Executor& executor) {
  RunTiles<Fold>(args, [&executor](const auto& kernel) { executor.RunBlocks(kernel); });
}

template <typename Executor>
void RunOne(const FoldValues& args, Executor& executor) {
  WithFold(args.kind, [&](auto fold) { RunFold<decltype(fold)>(args, executor); });
}

template <typename Executor>
void RunOne(const FoldTiles& args, Executor& executor) {
  WithFoldOfValues(args.kind, [&](auto fold) { RunFold<decltype(fold)>(args, executor); });
}

template <typename Kernel, typename Executor>
void RunOne(const Kernel& kernel, Executor& executor) {
  if constexpr (requires { kernel.num_blocks(); }) {
    executor.RunBlocks(kernel);
  } else {
    executor.RunElements(kernel);
  }
}

template <typename Executor>
void RunKernel(const KernelCall& call, Executor& executor) {
  std::visit([&executor](const auto& kernel) { RunOne(kernel, executor); }, call);
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_TESTS_SUPPORT_RUN_KERNEL_H_
