// Interface between a kernel body and its thread block; the same body runs on a device and under the executors on the
// host.
#ifndef SPARSEAGG_CUDA_KERNELS_BLOCK_H_
#define SPARSEAGG_CUDA_KERNELS_BLOCK_H_

#include <cstdint>

#include "cuda/kernels/number.h"

// A body is a function template over Block. It consists of phases:
//
//   block.Phase([&](uint32_t thread) { … });
//
// runs the statement for every thread of the block and then waits for all of them. Within a phase threads run in any
// order and must not read what another one writes, except with the atomic functions below. Across phases threads
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
// Block also provides index().

namespace sparseagg::cuda {

// A body's kThreads is the number of its threads: usually kBlockThreads, or kWarpThreads, whose barriers cost little.
// The compiler leaves registers for kMinBlocks blocks on a multiprocessor.
inline constexpr uint32_t kBlockThreads = 256;
inline constexpr uint32_t kWarpThreads = 32;
// Limit on a body's Shared: the shared memory that a block gets on every device without an opt-in, less what
// ExclusiveSum needs.
inline constexpr uint32_t kMaxSharedBytes = (48 << 10) - 64;

// Accesses to memory that other threads access at the same time. All are relaxed: they order no other access.
#ifdef __CUDA_ARCH__  // allow(conditional): the device has its own atomics
SPARSEAGG_HD inline uint32_t AtomicAdd(uint32_t* to, uint32_t value) { return atomicAdd(to, value); }
SPARSEAGG_HD inline void AtomicOr(uint32_t* to, uint32_t bits) { atomicOr(to, bits); }
SPARSEAGG_HD inline void AtomicMin(uint32_t* smallest, uint32_t value) { atomicMin(smallest, value); }
SPARSEAGG_HD inline void AtomicMin(uint64_t* smallest, uint64_t value) {
  atomicMin(reinterpret_cast<unsigned long long*>(smallest), static_cast<unsigned long long>(value));
}
// A volatile access to one element is a relaxed access in PTX.
template <typename T>
SPARSEAGG_HD void StoreRelaxed(T* to, T value) {
  *static_cast<volatile T*>(to) = value;
}
template <typename T>
SPARSEAGG_HD T LoadRelaxed(const T* from) {
  return *static_cast<const volatile T*>(from);
}

// Up to kCount loads of 16 bytes that a thread has under way at once, without registers for them: asynchronous copies
// to shared memory, of which each thread has a part of its own. Only in element-wise kernels, once in each. Requires:
// nothing is read between Start and Wait.
template <uint32_t kCount>
class LoadsAhead {
 public:
  static_assert(kCount * kBlockThreads * 16 <= kMaxSharedBytes);
  __device__ void Start(uint32_t i, const Pack<uint64_t, 2>* from) {
#if __CUDA_ARCH__ >= 800  // allow(conditional): older devices have no such copy
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(&Slot(i)))), "l"(from)
                 : "memory");
#else
    Slot(i) = *from;
#endif
  }
  __device__ void Wait() {
#if __CUDA_ARCH__ >= 800  // allow(conditional): likewise
    asm volatile("cp.async.wait_all;" : : : "memory");
#endif
  }
  __device__ const Pack<uint64_t, 2>& operator[](uint32_t i) const { return Slot(i); }

 private:
  __device__ static Pack<uint64_t, 2>& Slot(uint32_t i) {
    __shared__ Pack<uint64_t, 2> slots[kCount][kBlockThreads];
    return slots[i][threadIdx.x];
  }
};
#else
SPARSEAGG_HD inline uint32_t AtomicAdd(uint32_t* to, uint32_t value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
SPARSEAGG_HD inline void AtomicOr(uint32_t* to, uint32_t bits) { __atomic_fetch_or(to, bits, __ATOMIC_RELAXED); }
template <typename T>
SPARSEAGG_HD void AtomicMin(T* smallest, T value) {
  T current = __atomic_load_n(smallest, __ATOMIC_RELAXED);
  while (value < current &&
         !__atomic_compare_exchange_n(smallest, &current, value, /*weak=*/true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
template <typename T>
SPARSEAGG_HD void StoreRelaxed(T* to, T value) {
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
}
template <typename T>
SPARSEAGG_HD T LoadRelaxed(const T* from) {
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}

template <uint32_t kCount>
class LoadsAhead {
 public:
  SPARSEAGG_HD void Start(uint32_t i, const Pack<uint64_t, 2>* from) { from_[i] = from; }
  SPARSEAGG_HD void Wait() {  // as late as may be
    for (uint32_t i = 0; i < kCount; ++i) {
      if (from_[i] != nullptr) slots_[i] = *from_[i];
    }
  }
  SPARSEAGG_HD const Pack<uint64_t, 2>& operator[](uint32_t i) const { return slots_[i]; }

 private:
  const Pack<uint64_t, 2>* from_[kCount] = {};
  Pack<uint64_t, 2> slots_[kCount] = {};
};
#endif

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_BLOCK_H_
