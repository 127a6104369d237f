// Direct output: a place in the result (or in the base) to which a fold writes finished rows in one step.
#ifndef SPARSEAGG_HOST_CPU_ROWS_DIRECT_OUTPUT_H_
#define SPARSEAGG_HOST_CPU_ROWS_DIRECT_OUTPUT_H_

#include <cstddef>
#include <cstdint>

#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// What the sums of a row are divided by.
enum class DividedBy : uint8_t {
  kNothing,
  kTotal,   // the total weight of all submissions (MEAN)
  kCount,   // the number of the key's contributors
  kWeight,  // the sum of the weights of the key's contributors
};

// Where the values of finished rows go, and how accumulators become values.
//
// Direct output serves sums and means that drop no row. Their number of rows is known before the rows are finished, so
// the fold divides, rounds and writes them in one pass. All other results go through RowFinisher. The base of a later
// merge is written directly, too, as unfinished accumulators.
struct DirectValues {
  std::byte* values = nullptr;    // of the first row to write
  size_t columns = 1;             // values a row
  DType dtype = DType::kFloat32;  // kFloat32, kFloat64, or kInt64: the bits of unfinished accumulators
  DividedBy divided_by = DividedBy::kNothing;
  double total = 1.0;    // the divisor for kTotal
  bool streams = false;  // write past the caches, since the output is larger than they are
  // Of the first row to write. Null: this column is not wanted.
  uint32_t* counts = nullptr;
  double* weights = nullptr;

  size_t row_bytes() const { return columns * SizeOf(dtype); }
};

// The same with the column of keys.
template <typename Key>
struct DirectOutput : DirectValues {
  Key* keys = nullptr;  // of the first row to write
  // Only for rows of several values: `values` is the row of key 0, and the values of key k go to row k.
  bool at_keys = false;
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ROWS_DIRECT_OUTPUT_H_
