// The inner loops of the gather (gatherer.h), vectorised as kernels.h describes.
#ifndef SPARSEAGG_HOST_CPU_SIMD_SORT_FOLD_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_SORT_FOLD_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/cpu/rows/direct_output.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// Tuples of float updates, one value a key, sorted by key and within a key in canonical order.
struct CollectedTuples {
  // A key's offset from the block's first key in the upper half; in the lower half a value, from the lowest bit on, or
  // where there are terms, the index of the tuple's.
  const uint64_t* words = nullptr;
  size_t size = 0;
  // Null: the words carry values, all of one dtype and weight. Else double, or int64_t where `fixed`.
  const void* terms = nullptr;
  const uint64_t* weights = nullptr;  // beside the terms: what a key's weight is the sum of; null: there is none
  // Of carried values.
  DType dtype = DType::kFloat32;  // of at most 32 bits
  double weight = 1.0;
  bool fixed = false;
  double bound = 0.0;  // fixed: terms are clipped to ±bound
  double scale = 1.0;  // fixed: 2^s
};

// How many different keys there are.
size_t CountKeys(const CollectedTuples& tuples);

// Folds the tuples of each key from left to right (terms as of AddToTable) to finished rows, `rows` = CountKeys of
// them, of which nothing behind is written.
void FoldTo(const CollectedTuples& tuples, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output);
void FoldTo(const CollectedTuples& tuples, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_SORT_FOLD_KERNELS_H_
