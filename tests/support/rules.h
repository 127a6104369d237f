// The reference's own rules about result types, so that it does not share errors of host/spec/spec.h.
#ifndef SPARSEAGG_TESTS_SUPPORT_RULES_H_
#define SPARSEAGG_TESTS_SUPPORT_RULES_H_

#include "host/spec/spec.h"

namespace sparseagg::testing {

inline DType DTypeOfResult(const TensorSpec& spec) {
  if (spec.aggregation.result_dtype.has_value()) return *spec.aggregation.result_dtype;
  return spec.dtype == DType::kInt32 ? DType::kInt64 : spec.dtype;
}

inline bool HasCounts(const TensorSpec& spec) {
  return spec.aggregation.op == Op::kUnion || spec.aggregation.return_counts;
}

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_RULES_H_
