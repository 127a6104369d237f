// What a kernel body sees of its thread block, so that the same body runs on a device and under the host executor.
#ifndef SPARSEAGG_CUDA_KERNELS_BLOCK_H_
#define SPARSEAGG_CUDA_KERNELS_BLOCK_H_

#include <cstdint>

// A body is a function template over Block. It consists of phases:
//
//   block.Phase([&](uint32_t thread) { … });
//
// runs the statement for every thread of the block and then waits for all of them. Within a phase threads run in any
// order and must not read what another one writes; across phases they talk through the body's Shared struct. Nothing
// but Shared survives a phase: a thread's own variables are those of the lambda. All threads must reach the same phases,
// so the code around them may depend on the arguments, and on what earlier phases wrote to Shared if the next one does
// not write it (a fast thread is in that phase while a slow one still reads), but never on the thread.
//
// Block provides index(), num_threads() and Phase().

namespace sparseagg::cuda {

// Threads of every block kernel; bodies work with fewer as well.
inline constexpr uint32_t kBlockThreads = 256;
// Of a body's Shared: what every device gives a block without being asked for more.
inline constexpr uint32_t kMaxSharedBytes = 48 << 10;

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_BLOCK_H_
