// Interface between a kernel body and its thread block; the same body runs on a device and under the host executor.
#ifndef SPARSEAGG_CUDA_KERNELS_BLOCK_H_
#define SPARSEAGG_CUDA_KERNELS_BLOCK_H_

#include <cstdint>

// A body is a function template over Block. It consists of phases:
//
//   block.Phase([&](uint32_t thread) { … });
//
// runs the statement for every thread of the block and then waits for all of them. Within a phase threads run in any
// order and must not read what another one writes. Across phases threads communicate through the body's Shared struct.
// Nothing but Shared survives a phase: a thread's own variables are those of the lambda.
//
// All threads must reach the same phases. So the code between phases must never depend on the thread. It may depend on
// the arguments, and on data that earlier phases wrote to Shared, unless the next phase writes the same data: a fast
// thread may be in that phase while a slow one still reads.
//
// Block provides index(), num_threads() and Phase().

namespace sparseagg::cuda {

// Threads of every block kernel; bodies work with fewer as well.
inline constexpr uint32_t kBlockThreads = 256;
// Limit on a body's Shared: the shared memory that a block gets on every device without an opt-in.
inline constexpr uint32_t kMaxSharedBytes = 48 << 10;

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_BLOCK_H_
