#include "host/cpu/prepare/term_checks.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "host/cpu/prepare/terms.h"
#include "host/cpu/rows/wire_value.h"
#include "host/cpu/simd/kernels.h"

namespace sparseagg::cpu {
namespace {

// Errors: INVALID_ARGUMENT for a fixed-point term beyond value_bound. Under kClip only for NaN, which has no sign.
absl::Status CheckBound(const TensorSpec& spec, const CpuUpdate& update) {
  const AggregationSpec& a = spec.aggregation;
  const double bound = a.on_bound == BoundPolicy::kClip ? std::numeric_limits<double>::infinity() : a.value_bound;
  TermParams params;
  params.value_scale = {update.factor, update.weight};
  const uint64_t n = update.num_keys * spec.row_width;
  if (AreWithin(update.values, update.dtype, n, params.value_scale, bound)) return absl::OkStatus();
  const LoadTerms<double> load = TermLoader<double>(update.dtype);
  for (uint64_t i = 0; i < n; ++i) {
    double term[1 + kVectorSlack];
    load(update.values, n, i, 1, params, term);
    if (std::abs(*term) <= bound) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(RowName(spec, KeyAt(update.keys, i / spec.row_width), i % spec.row_width), ": term ", *term,
                     " is beyond value_bound ", a.value_bound));
  }
  return absl::InternalError(absl::StrCat(Quoted(spec), ": a term is beyond value_bound, and none is"));
}

// Errors: OUT_OF_RANGE for a weighted integer that does not fit int64.
template <typename Wire>
absl::Status CheckProducts(const TensorSpec& spec, const CpuUpdate& update) {
  const int64_t weight = static_cast<int64_t>(update.weight);
  const uint64_t n = update.num_keys * spec.row_width;
  for (uint64_t i = 0; i < n; ++i) {
    const int64_t value = LoadWire<Wire>(update.values, i);
    int64_t product;
    if (!__builtin_mul_overflow(value, weight, &product)) continue;
    return absl::OutOfRangeError(absl::StrCat(RowName(spec, KeyAt(update.keys, i / spec.row_width), i % spec.row_width),
                                              ": ", value, " with weight ", weight, " leaves int64"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string RowName(const TensorSpec& spec, uint64_t key, uint64_t column) {
  std::string text = absl::StrCat(Quoted(spec), ", key ", key);
  if (spec.row_width > 1) absl::StrAppend(&text, ", column ", column);
  return text;
}

absl::Status CheckTerms(const TensorSpec& spec, const CpuUpdate& update, bool as_sent) {
  if (update.values == nullptr) return absl::OkStatus();
  const Op op = spec.aggregation.op;
  if (op == Op::kMin || op == Op::kMax || op == Op::kUnion) return absl::OkStatus();
  if (op == Op::kMedian || op == Op::kQuantile) return absl::OkStatus();  // no value is multiplied by its weight
  if (UsesFixedPoint(spec)) {
    // A product of finite numbers is not NaN. (Sums of repeated keys may be: ∞ − ∞, where float64 has overflowed.)
    const AggregationSpec& a = spec.aggregation;
    const bool are_finite = as_sent && a.on_nonfinite == NonfinitePolicy::kReject;
    return a.on_bound == BoundPolicy::kClip && are_finite ? absl::OkStatus() : CheckBound(spec, update);
  }
  if (IsSignedInteger(spec.dtype) && update.weight != 1.0) {
    return update.dtype == DType::kInt32 ? CheckProducts<int32_t>(spec, update) : CheckProducts<int64_t>(spec, update);
  }
  return absl::OkStatus();
}

}  // namespace sparseagg::cpu
