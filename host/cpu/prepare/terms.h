// Terms: what a submission contributes to a sum, w_k · v_k(i), in the type that is summed.
#ifndef SPARSEAGG_HOST_CPU_PREPARE_TERMS_H_
#define SPARSEAGG_HOST_CPU_PREPARE_TERMS_H_

#include <cstddef>
#include <cstdint>

#include "host/spec/dtype.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// How the values of one update become terms.
struct TermParams {
  double weight = 1.0;
  int64_t integer_weight = 1;
  double bound = 0.0;  // fixed point: terms are clipped to ±bound
  double scale = 1.0;  // fixed point: 2^s
};

// Converts values [first, first + count) of the `size` ones at `values` to terms. `Term` is double (float sums; MIN and
// MAX of floats), int64_t (fixed point, integers) or uint64_t (modular). `terms` needs kVectorSlack.
template <typename Term>
using LoadTerms = void (*)(const std::byte* values, uint64_t size, uint64_t first, size_t count,
                           const TermParams& params, Term* terms);

// The conversion of values held as `dtype`. Floats become fixed-point terms when `Term` is int64_t.
template <typename Term>
LoadTerms<Term> TermLoader(DType dtype);

TermParams MakeTermParams(const TensorSpec& spec, double weight);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_TERMS_H_
