// Interface between a kernel body and its thread block; the same body runs on a device and under the executors on the
// host.
#ifndef SPARSEAGG_CUDA_KERNELS_BLOCK_H_
#define SPARSEAGG_CUDA_KERNELS_BLOCK_H_

#include <cstdint>

// A body is a function template over Block. It consists of phases:
//
//   block.Phase([&](uint32_t thread) { … });
//
// runs the statement for every thread of the block and then waits for all of them. Within a phase threads run in any
// order and must not read what another one writes, except with the functions of atomics.h. Across phases threads
// communicate through the body's Shared struct. A thread keeps values of its own in block.own(thread), a Private struct
// of the body; on a device they are registers. Nothing else survives a phase: a thread's own variables are those of the
// lambda.
//
//   block.ExclusiveSum([&](uint32_t thread) -> uint32_t { … },
//                      [&](uint32_t thread, uint32_t before, uint32_t total) { … });
//
// is two phases. In the first every thread gives a number. In the second it takes the sum of the numbers of all lower
// threads, and of all threads.
//
//   block.Each([&](uint32_t thread) { … });     as Phase, but threads do not wait for each other
//   block.WaitFor(d_value)   waits, within a phase, until *d_value is not 0, and returns it
//
// Blocks that wait for each other must wait only for blocks that have started. Blocks may start in any order, so a body
// draws the number of its part of the work from a counter.
//
// All threads must reach the same phases. So the code between phases must never depend on the thread. It may depend on
// the arguments, and on data that earlier phases wrote to Shared, unless the next phase writes the same data: a fast
// thread may be in that phase while a slow one still reads.
//
// Block also provides index() and num_threads(), which is the body's kThreads.

namespace sparseagg::cuda {

// A body's kThreads is the number of its threads: usually kBlockThreads, or kWarpThreads, whose barriers cost little.
// The compiler leaves registers for kMinBlocks blocks on a multiprocessor.
inline constexpr uint32_t kBlockThreads = 256;
inline constexpr uint32_t kWarpThreads = 32;
// Limit on a body's Shared: the shared memory that a block gets on every device without an opt-in, less what
// ExclusiveSum needs.
inline constexpr uint32_t kMaxSharedBytes = (48 << 10) - 64;

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_BLOCK_H_
