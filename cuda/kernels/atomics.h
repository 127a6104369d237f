// Accesses to memory that other threads access at the same time. All are relaxed: they order no other access.
#ifndef SPARSEAGG_CUDA_KERNELS_ATOMICS_H_
#define SPARSEAGG_CUDA_KERNELS_ATOMICS_H_

#include <cstdint>

#include "cuda/kernels/number.h"

namespace sparseagg::cuda {

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
#endif

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_ATOMICS_H_
