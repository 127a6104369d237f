// Launches of kernels and CUB algorithms on a CUDA stream. Every call is asynchronous on `stream`, allocates nothing
// and does not synchronise. Returns: the error of the launch. Pointers named d_* are device memory, which must live
// until the work is done. Work of size 0 launches nothing.
//
// Determinism: the same arguments give the same bits on every device, whatever the grid. (The lists of GatherSegments
// may be in any order.)
#ifndef SPARSEAGG_CUDA_KERNELS_LAUNCH_H_
#define SPARSEAGG_CUDA_KERNELS_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "cuda/kernels/calls.h"

namespace sparseagg::cuda {

cudaError_t Launch(const KernelCall& call, cudaStream_t stream);

// Launch for one fold. Each fold is instantiated in its own source file, so that they compile in parallel.
template <typename Fold>
cudaError_t LaunchFold(const FoldValues& args, cudaStream_t stream);
template <typename Fold>
cudaError_t LaunchFold(const FoldTiles& args, cudaStream_t stream);

// cub::DeviceRadixSort::SortPairs between double buffers. Sets `output` to the index of the buffer with the result.
// With d_scratch null, only sets scratch_bytes. Stable, hence deterministic.
cudaError_t SortKeys32(SortCall& call, int& output, cudaStream_t stream);
cudaError_t SortKeys64(SortCall& call, int& output, cudaStream_t stream);

// cub::DeviceSelect over 0, 1, 2, …. With d_scratch null, only sets scratch_bytes.
cudaError_t SelectIndices(SelectCall& call, cudaStream_t stream);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_LAUNCH_H_
