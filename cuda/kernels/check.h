// Range check of an update: whether any of its folded values is out of range. The host repeats a failed check, which is
// rare, and words the error.
#ifndef SPARSEAGG_CUDA_KERNELS_CHECK_H_
#define SPARSEAGG_CUDA_KERNELS_CHECK_H_

#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

// Checks one update of integers, by segments of equal keys: whether the folded values, and their products with the
// weight, fit int64. One call per segment and column.
struct CheckTerms {
  Segments segments;
  uint32_t columns = 1;
  const void* d_values = nullptr;
  Number type = Number::kInt32;
  int64_t integer_weight = 1;
  uint32_t* d_refused = nullptr;  // set to 1 if the update must be refused

  uint64_t size() const { return uint64_t{segments.count} * columns; }

  SPARSEAGG_HD void operator()(uint64_t i) const {
    const Cell cell = CellOf(i, columns);
    const auto segment = static_cast<uint32_t>(cell.row);
    const uint32_t begin = segments.Begin(segment);
    const uint32_t end = segments.End(segment);
    // Several threads may write the same 1.
    if (!Fits(begin, end, cell.column)) StoreRelaxed(d_refused, uint32_t{1});
  }

 private:
  SPARSEAGG_HD bool Fits(uint32_t begin, uint32_t end, uint64_t column) const {
    __int128 value = 0;
    for (uint32_t entry = begin; entry < end; ++entry) {
      value += LoadInteger(d_values, type, uint64_t{segments.Position(entry)} * columns + column);
    }
    // The value is checked first: the product of a value beyond int64 could overflow 128 bits.
    return FitsInt64(value) && FitsInt64(value * integer_weight);
  }

  SPARSEAGG_HD static bool FitsInt64(__int128 value) { return value >= INT64_MIN && value <= INT64_MAX; }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_CHECK_H_
