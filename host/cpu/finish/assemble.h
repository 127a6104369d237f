// The layout of a result.
#ifndef SPARSEAGG_HOST_CPU_FINISH_ASSEMBLE_H_
#define SPARSEAGG_HOST_CPU_FINISH_ASSEMBLE_H_

#include <cstddef>
#include <cstdint>

#include "host/result.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// A result of `num_rows` sparse rows, uninitialised.
Result MakeSparse(const TensorSpec& spec, uint64_t num_rows);

// Cuts a sparse result to its first `num_rows` rows, and gives the memory of the others back.
void CutSparse(const TensorSpec& spec, uint64_t num_rows, Result& result);

// A result in the dense layout, uninitialised.
Result MakeDense(const TensorSpec& spec);

// Writes what a dense result holds of keys that nobody touched: `fill`, no contributors and no weight.
class DenseFill {
 public:
  explicit DenseFill(const TensorSpec& spec);
  // Whether that is all zeros.
  bool is_zero() const { return is_zero_; }

  // Of the keys from `begin` to before `end`; of absent columns nothing.
  void Rows(uint64_t begin, uint64_t end, Result& result) const;
  // The same for one column.
  void Values(uint64_t begin, uint64_t end, Result& result) const;
  void Counts(uint64_t begin, uint64_t end, Result& result) const;
  void Weights(uint64_t begin, uint64_t end, Result& result) const;

 private:
  std::byte value_[8] = {};
  bool is_zero_ = true;
};

// The rows of a sparse result in the dense layout.
Result MakeDense(const TensorSpec& spec, const Result& sparse);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_FINISH_ASSEMBLE_H_
