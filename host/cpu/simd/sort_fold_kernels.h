// Kernels of the sort fold (merge/sort_fold.h): folding sorted tuples of one value. See kernels.h for targets.
#ifndef SPARSEAGG_HOST_CPU_SIMD_SORT_FOLD_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_SORT_FOLD_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/cpu/rows/direct_output.h"
#include "host/cpu/simd/value_scale.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// Tuples of float updates, one value a key, sorted by key and within a key in canonical order.
struct CollectedTuples {
  // Upper half: offset of the key from the block's first key. Lower half, the payload: the value itself, in the lowest
  // bits, if `terms` is null; else an index into `terms`.
  const uint64_t* words = nullptr;
  size_t size = 0;
  // Null: all values have one dtype and one ValueScale, and are in the words. Else double, or int64_t if `fixed`.
  const void* terms = nullptr;
  const uint64_t* weights = nullptr;  // one for each term, in the bits of FoldedRows::weights; null: not summed
  // Of values in the words:
  DType dtype = DType::kFloat32;  // of at most 32 bits
  ValueScale value_scale;
  bool fixed = false;
  double bound = 0.0;  // fixed: terms are clipped to ±bound
  double scale = 1.0;  // fixed: 2^s
};

// Returns: the number of distinct keys.
size_t CountKeys(const CollectedTuples& tuples);

// Folds the tuples of each key from left to right and writes one finished row a key. Terms are those of AddToTable.
// `first`: the block's first key. `rows`: CountKeys(tuples); nothing behind these rows is written.
void FoldTo(const CollectedTuples& tuples, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output);
void FoldTo(const CollectedTuples& tuples, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_SORT_FOLD_KERNELS_H_
