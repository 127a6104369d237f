// Where rows go that are nothing but their key, their accumulators and perhaps a count.
#ifndef SPARSEAGG_HOST_CPU_ROWS_DIRECT_OUTPUT_H_
#define SPARSEAGG_HOST_CPU_ROWS_DIRECT_OUTPUT_H_

#include <cstddef>
#include <cstdint>

#include "host/spec/dtype.h"

namespace sparseagg::cpu {

enum class DividedBy : uint8_t { kNothing, kTotal, kCount, kWeight };

// Sums and means of which every row stays: the rows' number is known before they are finished, so that they go from the
// fold to the result in one step (finish.h has the other cases); and accumulators as they are, for a later merge.
struct DirectValues {
  std::byte* values = nullptr;    // of the first row to write
  size_t columns = 1;             // values a row
  DType dtype = DType::kFloat32;  // or kFloat64; kInt64: integer accumulators as they are
  double unit = 1.0;              // of an integer accumulator that is not to stay one: the value of 1
  DividedBy divided_by = DividedBy::kNothing;
  double total = 1.0;        // kTotal: the divisor
  double weight_unit = 1.0;  // kWeight with integer accumulators, and so integer weights: the value of 1
  bool streams = false;      // there is more than the caches hold, which may be passed by
  // Of the first row to write; null: not returned.
  uint32_t* counts = nullptr;
  uint64_t* weights = nullptr;  // as of FoldedRows

  size_t row_bytes() const { return columns * SizeOf(dtype); }
};

template <typename Key>
struct DirectOutput : DirectValues {
  Key* keys = nullptr;  // of the first row to write
  // Rows of several values: `values` is the row of key 0, and each goes to that of its key.
  bool at_keys = false;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ROWS_DIRECT_OUTPUT_H_
