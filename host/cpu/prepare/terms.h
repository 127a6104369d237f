// Conversion of an update's values to terms. A term is what a submission adds to a sum: weight · value, in the type of
// the sum.
#ifndef SPARSEAGG_HOST_CPU_PREPARE_TERMS_H_
#define SPARSEAGG_HOST_CPU_PREPARE_TERMS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/simd/kernels.h"
#include "host/spec/dtype.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Parameters of the conversion for one update.
struct TermParams {
  ValueScale value_scale;
  int64_t integer_weight = 1;
};

// Converts values [first, first + count) of the `size` values at `values` to terms. `Term` is double (float sums; MIN
// and MAX of floats), int64_t (integers) or uint64_t (modular).
// Requires: room for kVectorSlack terms more at `terms`.
template <typename Term>
using LoadTerms = void (*)(const std::byte* values, uint64_t size, uint64_t first, size_t count,
                           const TermParams& params, Term* terms);

// Returns: the conversion of values of `dtype`.
template <typename Term>
LoadTerms<Term> TermLoader(DType dtype);

// Returns: the parameters of an update with this factor and weight. MIN, MAX and UNION ignore weights.
TermParams MakeTermParams(const TensorSpec& spec, ValueScale scale);

// Returns: the name of a value for errors: tensor, key and, where rows have several, column.
std::string RowName(const TensorSpec& spec, uint64_t key, uint64_t column);

// Checks the terms (weight × row) that the merge will add, after repeated keys were folded. Terms that cannot fail are
// not read: most sums have no others.
// Errors: OUT_OF_RANGE for a weighted integer that does not fit int64.
absl::Status CheckTerms(const TensorSpec& spec, const CpuUpdate& update);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_TERMS_H_
