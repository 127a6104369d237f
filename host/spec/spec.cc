#include "host/spec/spec.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/float_environment.h"
#include "host/base/status_macros.h"
#include "host/spec/ids.h"

namespace sparseagg {
namespace {

// Bounds of value_bound and weight_bound: with them every fixed-point scale 2^s, and 2^-s, is a normal double.
constexpr double kMinBound = 0x1p-900;
constexpr double kMaxBound = 0x1p900;

// Bounds of result_min_norm: its square, and those of norms near it, are normal doubles.
constexpr double kMinNorm = 0x1p-500;
constexpr double kMaxNorm = 0x1p500;

absl::Status Invalid(const TensorSpec& spec, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": ", problem));
}

bool IsMean(Op op) { return op == Op::kMean || op == Op::kCoordinateMean; }

absl::Status ValidateTypes(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (IsModular(spec.dtype) != spec.modular) {
    return Invalid(spec, absl::StrCat("dtype ", Name(spec.dtype),
                                      spec.modular ? " cannot be modular; uint32 and uint64 can"
                                                   : " needs modular = true: its sums wrap"));
  }
  if (spec.modular) {
    if (a.op != Op::kSum && a.op != Op::kUnion) {
      return Invalid(spec, absl::StrCat("modular tensors take the ops sum and union, not ", Name(a.op)));
    }
    if (a.weighting != Weighting::kUniform) return Invalid(spec, "modular tensors take uniform weighting only");
    if (a.result_dtype.has_value()) return Invalid(spec, "modular tensors have no result_dtype");
  }
  if (a.result_dtype.has_value() && *a.result_dtype != DType::kFloat32 && *a.result_dtype != DType::kFloat64) {
    return Invalid(spec, absl::StrCat("result_dtype may be float32 or float64, not ", Name(*a.result_dtype)));
  }
  return absl::OkStatus();
}

absl::Status ValidateLayouts(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (spec.num_rows == 0) {
    if (spec.layout == Layout::kDense) return Invalid(spec, "layout dense needs num_rows");
    if (a.result_layout == ResultLayout::kDense) return Invalid(spec, "a dense result needs num_rows");
  }
  if (a.dense_threshold.has_value() && !(*a.dense_threshold > 0.0 && *a.dense_threshold <= 1.0)) {
    return Invalid(spec, absl::StrFormat("dense_threshold %g is not in (0, 1]", *a.dense_threshold));
  }
  if (!std::isfinite(a.fill)) return Invalid(spec, absl::StrFormat("fill %g is not finite", a.fill));
  const DType result = ResultDType(spec);
  if (a.op != Op::kUnion && !IsFloat(result)) {
    double low = -0x1p63;
    double high = 0x1p63;
    if (IsModular(result)) {
      low = 0.0;
      high = result == DType::kUInt32 ? 0x1p32 : 0x1p64;
    }
    if (a.fill != std::rint(a.fill) || a.fill < low || a.fill >= high) {
      return Invalid(spec, absl::StrFormat("fill %g is not a value of %s", a.fill, std::string(Name(result))));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateBound(const TensorSpec& spec, absl::string_view field, double bound) {
  if (bound == 0.0) return Invalid(spec, absl::StrCat("fixed_point needs ", field));
  if (!(bound >= kMinBound && bound <= kMaxBound)) {
    return Invalid(spec, absl::StrFormat("%s %g is not in [2^-900, 2^900]", std::string(field), bound));
  }
  return absl::OkStatus();
}

absl::Status ValidateNumerics(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (a.numerics != Numerics::kFixedPoint) return absl::OkStatus();
  const bool sums_weights = a.weighting == Weighting::kByWeight && (IsMean(a.op) || a.return_weights);
  if (UsesFixedPoint(spec)) {
    // With privacy, clip.l2 is the bound of the terms.
    if (!spec.privacy.has_value()) RETURN_IF_ERROR(ValidateBound(spec, "value_bound", a.value_bound));
    if (a.on_nonfinite == NonfinitePolicy::kPropagate) {
      return Invalid(spec, "fixed_point has no NaN or Inf, so it cannot propagate them");
    }
  }
  if ((UsesFixedPoint(spec) || sums_weights) && a.max_submissions == 0) {
    return Invalid(spec, "fixed_point needs max_submissions");
  }
  if ((UsesFixedPoint(spec) || sums_weights) && a.max_submissions > (uint64_t{1} << 32)) {
    return Invalid(spec, absl::StrCat("fixed_point takes max_submissions up to 2^32, not ", a.max_submissions));
  }
  if (a.weighting == Weighting::kByWeight && (UsesFixedPoint(spec) || sums_weights)) {
    RETURN_IF_ERROR(ValidateBound(spec, "weight_bound", a.weight_bound));
  }
  return absl::OkStatus();
}

absl::Status ValidateDivisor(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (a.mean_divisor != MeanDivisor::kFixed) {
    if (a.fixed_divisor == 0.0) return absl::OkStatus();
    return Invalid(spec, absl::StrFormat("fixed_divisor %g is for mean_divisor fixed", a.fixed_divisor));
  }
  if (a.fixed_divisor == 0.0) return Invalid(spec, "mean_divisor fixed needs fixed_divisor");
  if (a.fixed_divisor >= kMinBound && a.fixed_divisor <= kMaxBound) return absl::OkStatus();
  return Invalid(spec, absl::StrFormat("fixed_divisor %g is not in [2^-900, 2^900]", a.fixed_divisor));
}

absl::Status ValidateMoments(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (!a.return_moments) return absl::OkStatus();
  if (a.op != Op::kSum && !IsMean(a.op)) {
    return Invalid(spec, absl::StrCat("return_moments is for the ops sum, mean and coordinate_mean, not ", Name(a.op)));
  }
  if (spec.modular) return Invalid(spec, "return_moments is for values with squares, and modular sums wrap");
  if (a.numerics == Numerics::kFixedPoint) {
    return Invalid(spec, "return_moments needs canonical numerics: the squares are float64 sums in order of client id");
  }
  return absl::OkStatus();
}

absl::Status ValidateCut(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (!HasCut(spec)) return absl::OkStatus();
  if (a.result_min_norm != 0.0 && !(a.result_min_norm >= kMinNorm && a.result_min_norm <= kMaxNorm)) {
    return Invalid(spec, absl::StrFormat("result_min_norm %g is not in [2^-500, 2^500]", a.result_min_norm));
  }
  if (HasNorms(spec)) return absl::OkStatus();
  const absl::string_view reason =
      a.op == Op::kUnion ? "is for rows with values, and union has none"
      : spec.modular     ? "is for values with a norm, and modular sums wrap"
      : a.result_layout == ResultLayout::kAuto
          ? "is for the result_layout sparse: auto chooses the layout by the keys before the cut"
          : "is for the result_layout sparse: a dense result has a row for every key";
  return Invalid(spec, absl::StrCat(a.result_top_k != 0 ? "result_top_k " : "result_min_norm ", reason));
}

}  // namespace

absl::string_view Name(Op op) {
  constexpr absl::string_view kNames[] = {"sum", "mean",   "coordinate_mean", "union",   "min",
                                          "max", "median", "trimmed_mean",    "quantile"};
  return kNames[static_cast<size_t>(op)];
}

std::string Quoted(const TensorSpec& spec) { return absl::StrCat("tensor '", spec.name, "'"); }

absl::Status Validate(const TensorSpec& spec) {
  const DefaultFloatEnvironment environment;
  RETURN_IF_ERROR(CheckId(spec.name, "the name of a tensor"));
  if (spec.row_width == 0) return Invalid(spec, "row_width 0; a row has at least one value");
  RETURN_IF_ERROR(ValidateTypes(spec));
  RETURN_IF_ERROR(ValidateLayouts(spec));
  RETURN_IF_ERROR(ValidateDivisor(spec));
  RETURN_IF_ERROR(ValidateCut(spec));
  RETURN_IF_ERROR(ValidateMoments(spec));
  if (IsOrderStatistic(spec.aggregation.op)) return ValidateOrder(spec);
  return ValidateNumerics(spec);
}

}  // namespace sparseagg
