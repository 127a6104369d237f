// Memory, layout and rounding of a result.
#ifndef SPARSEAGG_HOST_CPU_FINISH_ASSEMBLE_H_
#define SPARSEAGG_HOST_CPU_FINISH_ASSEMBLE_H_

#include <cstddef>
#include <cstdint>

#include "host/result.h"
#include "host/spec/dtype.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Rounds `count` values to the float type `dtype`, to nearest even, and writes them to `out`. NaN becomes the canonical
// NaN (quiet, positive). −0.0 becomes +0.0, also where the rounding made it.
void RoundTo(DType dtype, const double* values, size_t count, std::byte* out);

// Returns: a result of `num_keys` sparse rows, uninitialised.
Result MakeSparse(const TensorSpec& spec, uint64_t num_keys);

// Cuts a sparse result to its first `num_keys` rows and releases the memory of the others.
void CutSparse(const TensorSpec& spec, uint64_t num_keys, Result& result);

// Returns: a result in the dense layout, uninitialised.
Result MakeDense(const TensorSpec& spec);

// Writer of the untouched rows of a dense result: the spec's `fill`, count 0 and weight 0. Immutable, so thread-safe.
class DenseFill {
 public:
  explicit DenseFill(const TensorSpec& spec);

  // Returns: whether untouched rows are all zero bits.
  bool is_zero() const { return is_zero_; }

  // Writes rows [begin, end), all columns that the result has.
  void Rows(uint64_t begin, uint64_t end, Result& result) const;

  // The same for one column.
  void Values(uint64_t begin, uint64_t end, Result& result) const;
  void Counts(uint64_t begin, uint64_t end, Result& result) const;
  void Weights(uint64_t begin, uint64_t end, Result& result) const;

 private:
  std::byte value_[8] = {};  // `fill` in the result's dtype
  bool is_zero_ = true;
};

// Returns: a sparse result converted to the dense layout.
Result MakeDense(const TensorSpec& spec, const Result& sparse);

// Cuts a sparse result to its first `num_rows` rows, and makes it dense where the spec says so.
Result CutAndLayOut(const TensorSpec& spec, uint64_t num_rows, Result result);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_FINISH_ASSEMBLE_H_
