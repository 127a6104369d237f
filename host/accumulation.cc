#include "host/accumulation.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "host/base/binned.h"
#include "host/spec/spec.h"
#include "host/unfinished_rows.h"

namespace sparseagg {

double TotalWeight(const TensorSpec& spec, const PartialTotals& totals) {
  const AggregationSpec& a = spec.aggregation;
  if (a.op != Op::kMean) return 0.0;
  if (a.mean_divisor == MeanDivisor::kFixed) return a.fixed_divisor;
  if (!NeedsWeightSum(spec)) return static_cast<double>(totals.num_submissions);
  if (a.numerics == Numerics::kBinned) return totals.binned_weights.Value();
  return static_cast<double>(totals.weight_sum);
}

double TotalWeight(const TensorSpec& spec, absl::Span<const double> weights, const PartialTotals& partials,
                   SubmissionOrder order) {
  if (!NeedsWeightSum(spec) || spec.aggregation.numerics != Numerics::kCanonical) {
    return TotalWeight(spec, TotalsOf(spec, weights, partials));
  }
  auto total = static_cast<double>(partials.weight_sum);
  for (const uint32_t index : order) {
    if (weights[index] != kPartialWeight) total += weights[index];
  }
  return total;
}

PartialTotals TotalsOf(const TensorSpec& spec, absl::Span<const double> weights, const PartialTotals& partials) {
  const bool is_binned = spec.aggregation.numerics == Numerics::kBinned;
  const bool needs_binned = is_binned && spec.aggregation.weighting == Weighting::kByWeight;
  const bool needs_sum = !is_binned && NeedsWeightSum(spec);
  PartialTotals totals = partials;
  for (const double weight : weights) {
    if (weight == kPartialWeight) continue;
    ++totals.num_submissions;
    if (weight == 0.0) totals.has_zero_weight = true;
    if (needs_binned) totals.binned_weights.Add(weight);
    if (!needs_sum) continue;
    // Integer weights are below 2^53.
    const auto units = static_cast<int64_t>(weight);
    if (__builtin_add_overflow(totals.weight_sum, units, &totals.weight_sum)) {
      totals.weight_sum = std::numeric_limits<int64_t>::max();
    }
  }
  return totals;
}

PartialTotals Sum(const PartialTotals& a, const PartialTotals& b) {
  PartialTotals sum;
  sum.num_submissions = a.num_submissions + b.num_submissions;
  if (__builtin_add_overflow(a.weight_sum, b.weight_sum, &sum.weight_sum)) {
    sum.weight_sum = std::numeric_limits<int64_t>::max();
  }
  sum.binned_weights = a.binned_weights;
  sum.binned_weights.Merge(b.binned_weights);
  sum.has_zero_weight = a.has_zero_weight || b.has_zero_weight;
  return sum;
}

absl::Status CheckOrder(const TensorSpec& spec, SubmissionOrder order, uint64_t num_submissions) {
  if (order.size() == num_submissions) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(Quoted(spec), ": an order of ", order.size(), " for ", num_submissions, " submissions"));
}

namespace {

std::string RowName(const TensorSpec& spec, const FailedRow& row) {
  const uint64_t least = spec.aggregation.min_contributors;
  return least > 1 && row.contributors < least
             ? absl::StrCat(Quoted(spec), ", a key of fewer contributors than min_contributors ", least)
             : absl::StrCat(Quoted(spec), ", key ", row.key);
}

}  // namespace

absl::Status ZeroWeightError(const TensorSpec& spec) {
  return absl::FailedPreconditionError(absl::StrCat(
      Quoted(spec), ": the weights of all submissions add up to 0, so there is no ", Name(spec.aggregation.op)));
}

absl::Status KeepsSubmissionsError(const TensorSpec& spec) {
  return absl::FailedPreconditionError(absl::StrCat(Quoted(spec), ": ", Name(spec.aggregation.op),
                                                    " needs all values of a key at once, so that submissions cannot be "
                                                    "folded before the close"));
}

absl::Status OverflowError(const TensorSpec& spec, const FailedRow& row, uint64_t column) {
  std::string name = RowName(spec, row);
  if (spec.row_width > 1) absl::StrAppend(&name, ", column ", column);
  return absl::OutOfRangeError(absl::StrCat(name, ": the ", Name(spec.aggregation.op), " overflows int64"));
}

}  // namespace sparseagg
