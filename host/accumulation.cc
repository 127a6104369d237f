#include "host/accumulation.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "host/spec/fixed_point.h"

namespace sparseagg {

double TotalWeight(const TensorSpec& spec, absl::Span<const double> weights, SubmissionOrder order) {
  const AggregationSpec& a = spec.aggregation;
  if (a.op != Op::kMean) return 0.0;
  if (a.mean_divisor == MeanDivisor::kFixed) return a.fixed_divisor;
  if (a.weighting == Weighting::kUniform || a.mean_divisor == MeanDivisor::kSubmissions) {
    return static_cast<double>(weights.size());
  }
  if (a.numerics == Numerics::kFixedPoint) {
    const int shift = WeightShift(a);
    int64_t total = 0;
    for (const double weight : weights) total += std::llrint(std::ldexp(weight, shift));
    return std::ldexp(static_cast<double>(total), -shift);
  }
  double total = 0.0;
  for (const uint32_t index : order) total += weights[index];
  return total;
}

absl::Status CheckOrder(const TensorSpec& spec, SubmissionOrder order, uint64_t num_submissions) {
  if (order.size() == num_submissions) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(Quoted(spec), ": an order of ", order.size(), " for ", num_submissions, " submissions"));
}

}  // namespace sparseagg
