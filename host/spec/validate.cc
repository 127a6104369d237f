#include "host/spec/validate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "host/base/float_environment.h"
#include "host/base/status_macros.h"
#include "host/spec/clip.h"
#include "host/spec/spec.h"

namespace sparseagg {
namespace {

// Bounds of result_min_norm: its square, and those of norms near it, are normal doubles.
constexpr double kMinCutNorm = 0x1p-500;
constexpr double kMaxCutNorm = 0x1p500;

// NumPy's limit in its oldest supported versions.
constexpr size_t kMaxAxes = 32;

absl::Status Invalid(const TensorSpec& spec, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": ", problem));
}

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

bool TakesBinned(const TensorSpec& spec) {
  const Op op = spec.aggregation.op;
  return IsSum(op) && IsFloat(spec.dtype);
}

absl::Status ValidateBinned(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (a.numerics == Numerics::kBinned && !TakesBinned(spec)) {
    return Invalid(spec, absl::StrCat("binned numerics are for sums and means of floats, not for the op ", Name(a.op),
                                      " of ", Name(spec.dtype)));
  }
  if (a.max_submissions > MaxBinnedSubmissions(spec)) {
    return Invalid(spec, absl::StrCat("binned sums of ", BinnedTerms(spec), " take max_submissions up to ",
                                      MaxBinnedSubmissions(spec), ", not ", a.max_submissions));
  }
  return absl::OkStatus();
}

absl::Status ValidateDivisor(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (a.mean_divisor != MeanDivisor::kFixed) return absl::OkStatus();
  if (a.fixed_divisor == 0.0) return Invalid(spec, "mean_divisor fixed needs fixed_divisor");
  if (a.fixed_divisor >= 0x1p-900 && a.fixed_divisor <= 0x1p900) return absl::OkStatus();
  return Invalid(spec, absl::StrFormat("fixed_divisor %g is not in [2^-900, 2^900]", a.fixed_divisor));
}

absl::Status ValidateMoments(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (!a.return_moments) return absl::OkStatus();
  if (!IsSum(a.op)) {
    return Invalid(spec, absl::StrCat("return_moments is for the ops sum, mean and coordinate_mean, not ", Name(a.op)));
  }
  if (spec.modular) return Invalid(spec, "return_moments is for values with squares, and modular sums wrap");
  if (a.numerics != Numerics::kCanonical) {
    return Invalid(spec, "return_moments needs canonical numerics: the squares are float64 sums in order of client id");
  }
  return absl::OkStatus();
}

absl::Status ValidateCut(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  if (!HasCut(spec)) return absl::OkStatus();
  if (a.result_min_norm != 0.0 && !(a.result_min_norm >= kMinCutNorm && a.result_min_norm <= kMaxCutNorm)) {
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

absl::Status ValidateOrder(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  const OrderOptions& order = a.order;
  if (a.op == Op::kTrimmedMean) {
    if (!order.trim_fraction.has_value()) return Invalid(spec, "trimmed_mean needs a trim_fraction, in [0, 0.5)");
    if (!(*order.trim_fraction >= 0.0 && *order.trim_fraction < 0.5)) {
      return Invalid(spec, absl::StrCat("trim_fraction ", *order.trim_fraction, " is not in [0, 0.5)"));
    }
  }
  if (a.op == Op::kQuantile) {
    if (!order.quantile.has_value()) return Invalid(spec, "the op quantile needs the option quantile, in [0, 1]");
    if (!(*order.quantile >= 0.0 && *order.quantile <= 1.0)) {
      return Invalid(spec, absl::StrCat("quantile ", *order.quantile, " is not in [0, 1]"));
    }
  }
  return absl::OkStatus();
}

// An option that some tensors have no use for.
struct UnusedOption {
  bool (*is_given)(const Options&);
  bool (*is_used)(const TensorSpec&);
  absl::string_view text;  // the option, and what it is for
  bool of_tensors;         // false: Validate refuses the option of a tensor, and says why
};

// scripts/error_reference.py finds the texts by this name.
constexpr UnusedOption Unused(bool (*is_given)(const Options&), bool (*is_used)(const TensorSpec&),
                              absl::string_view text, bool of_tensors = true) {
  return {is_given, is_used, text, of_tensors};
}

template <auto kField>
bool Has(const Options& options) {
  return (options.*kField).has_value();
}
template <auto kField>
bool IsNotZero(const Options& options) {
  return (options.*kField).value_or(0) != 0;
}
template <auto kField, auto kValue>
bool Is(const Options& options) {
  return options.*kField == kValue;
}
template <auto... kOps>
bool HasOp(const TensorSpec& spec) {
  return ((spec.aggregation.op == kOps) || ...);
}

bool HasValues(const TensorSpec& spec) { return spec.aggregation.op != Op::kUnion; }
bool HasOrder(const TensorSpec& spec) { return IsOrderStatistic(spec.aggregation.op); }
bool UsesWeights(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  return IsSum(a.op) || IsOrderStatistic(a.op) || a.return_weights;
}
bool UsesDivisor(const TensorSpec& spec) {
  return HasOp<Op::kMean>(spec) && spec.aggregation.mean_divisor == MeanDivisor::kFixed;
}
bool UsesFill(const TensorSpec& spec) { return spec.aggregation.result_layout != ResultLayout::kSparse; }
bool IsAuto(const TensorSpec& spec) { return spec.aggregation.result_layout == ResultLayout::kAuto; }
bool IsDense(const TensorSpec& spec) { return spec.layout == Layout::kDense; }

// An option without effect is refused, since its caller believes in an effect: that a bound is enforced, for example.
constexpr UnusedOption kUnused[] = {
    Unused(Is<&Options::weighting, Weighting::kByWeight>, UsesWeights,
           "weighting by_weight is for sums, means and order statistics, and for return_weights"),
    Unused(Has<&Options::trim_fraction>, HasOp<Op::kTrimmedMean>, "trim_fraction is for the op trimmed_mean"),
    Unused(Has<&Options::quantile>, HasOp<Op::kQuantile>, "quantile is for the op quantile"),
    Unused(Has<&Options::absent>, HasOrder, "absent is for the ops median, trimmed_mean and quantile"),
    Unused(Is<&Options::numerics, Numerics::kBinned>, TakesBinned,
           "binned numerics have no effect: no tensor has a sum or mean of floats",
           /*of_tensors=*/false),
    Unused(IsNotZero<&Options::result_top_k>, HasNorms,
           "result_top_k has no effect: no tensor has the result_layout sparse and values that are not modular",
           /*of_tensors=*/false),
    Unused(IsNotZero<&Options::result_min_norm>, HasNorms,
           "result_min_norm has no effect: no tensor has the result_layout sparse and values that are not modular",
           /*of_tensors=*/false),
    Unused(Has<&Options::mean_divisor>, HasOp<Op::kMean>, "mean_divisor is for the op mean"),
    Unused(Has<&Options::fixed_divisor>, UsesDivisor, "fixed_divisor is for the op mean and the mean_divisor fixed"),
    Unused(IsNotZero<&Options::fill>, UsesFill, "fill is for the result layouts dense and auto"),
    Unused(Has<&Options::dense_threshold>, IsAuto, "dense_threshold is for the result_layout auto"),
    Unused(IsNotZero<&Options::prune_zeros>, HasValues, "prune_zeros is for ops with values"),
    Unused(Has<&Options::result_dtype>, HasValues, "result_dtype is for ops with values"),
    Unused(Is<&Options::on_empty, EmptyPolicy::kFail>, IsDense,
           "on_empty fail is for tensors of layout dense; min_submissions 1 makes every empty round fail"),
};

// Errors: INVALID_ARGUMENT: an option of the tensor has no effect.
absl::Status RefuseUnused(const Options& options, const TensorSpec& spec) {
  for (const UnusedOption& unused : kUnused) {
    if (!unused.of_tensors || !unused.is_given(options) || unused.is_used(spec)) continue;
    return Invalid(spec, unused.text);
  }
  return absl::OkStatus();
}

// Errors: INVALID_ARGUMENT: an option of the round has no effect on any tensor.
absl::Status RefuseUnused(const Options& options, absl::Span<const TensorSpec> specs) {
  for (const UnusedOption& unused : kUnused) {
    if (!unused.is_given(options) || std::any_of(specs.begin(), specs.end(), unused.is_used)) continue;
    return absl::InvalidArgumentError(unused.text);
  }
  return absl::OkStatus();
}

// Sets `out`, which has the default, to the option of the tensor or else of the round.
template <typename T, typename Out>
void Choose(const std::optional<T>& tensor, const std::optional<T>& round, Out& out) {
  if (tensor.has_value() || round.has_value()) out = tensor.has_value() ? *tensor : *round;
}

// Sets the options of a tensor. Those of the round that are for other kinds of tensors are left out.
void Combine(const Options& own, const Options& round, TensorSpec& spec) {
  AggregationSpec& a = spec.aggregation;
  a.result_layout = spec.layout == Layout::kDense ? ResultLayout::kDense : ResultLayout::kSparse;
  Choose(own.op, round.op, a.op);
  Choose(own.weighting, round.weighting, a.weighting);
  Choose(own.result_layout, round.result_layout, a.result_layout);
  const bool is_left_out = round.numerics == Numerics::kBinned && !TakesBinned(spec);
  Choose(own.numerics, is_left_out ? std::nullopt : round.numerics, a.numerics);
  Choose(own.return_counts, round.return_counts, a.return_counts);
  Choose(own.return_weights, round.return_weights, a.return_weights);
  Choose(own.return_moments, round.return_moments, a.return_moments);
  Choose(own.min_contributors, round.min_contributors, a.min_contributors);
  Choose(own.prune_zeros, round.prune_zeros, a.prune_zeros);
  Choose(own.fill, round.fill, a.fill);
  Choose(own.dense_threshold, round.dense_threshold, a.dense_threshold);
  Choose(own.result_dtype, round.result_dtype, a.result_dtype);
  Choose(own.on_nonfinite, round.on_nonfinite, a.on_nonfinite);
  Choose(own.on_empty, round.on_empty, a.on_empty);
  Choose(own.mean_divisor, round.mean_divisor, a.mean_divisor);
  if (a.mean_divisor == MeanDivisor::kFixed) Choose(own.fixed_divisor, round.fixed_divisor, a.fixed_divisor);
  const Options& cut = HasNorms(spec) ? round : Options();
  Choose(own.result_top_k, cut.result_top_k, a.result_top_k);
  Choose(own.result_min_norm, cut.result_min_norm, a.result_min_norm);
  Choose(own.trim_fraction, round.trim_fraction, a.order.trim_fraction);
  Choose(own.quantile, round.quantile, a.order.quantile);
  Choose(own.absent, round.absent, a.order.absent);
}

// Errors: INVALID_ARGUMENT: options of the round exclude each other.
absl::Status CheckRound(const RoundDraft& draft, absl::Span<const TensorSpec> specs) {
  if (draft.max_submissions != 0 && draft.min_submissions > draft.max_submissions) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_submissions ", draft.min_submissions, " is beyond max_submissions ", draft.max_submissions));
  }
  if (draft.has_certificate && draft.privacy.has_value()) {
    return absl::InvalidArgumentError(
        "certificate and privacy exclude each other: the certificate tells how many submissions there are");
  }
  if (draft.has_cluster && draft.privacy.has_value() && !draft.is_stored) {
    return absl::InvalidArgumentError(
        "privacy and cluster exclude each other: servers export no submissions of rounds with privacy");
  }
  if (!draft.accepts_partials) return absl::OkStatus();
  const auto refuse = [](absl::string_view other, absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat("accept_partials and ", other, " exclude each other: ", reason));
  };
  if (draft.privacy.has_value()) return refuse("privacy", "a partial's submissions have no noise");
  if (draft.has_certificate) return refuse("certificate", "nobody can tell which submissions a partial has");
  if (draft.keep_submissions) return refuse("keep_submissions", "a partial has none of its submissions");
  for (const TensorSpec& spec : specs) {
    if (spec.clip.has_bound()) {
      return refuse("clip", "the bounds are for single submissions, which a partial does not have");
    }
  }
  for (const TensorSpec& spec : specs) {
    const absl::Status status = CheckHasPartials(spec);
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("accept_partials: ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckHasPartials(const TensorSpec& spec) {
  if (!OrderMatters(spec)) return absl::OkStatus();
  const bool is_statistic = IsOrderStatistic(spec.aggregation.op);
  const absl::string_view reason =
      is_statistic ? "needs all values of a key at once" : "sums floats in the order of the clients";
  return absl::FailedPreconditionError(
      absl::StrCat(Quoted(spec), " ", reason, ", so that no partial keeps the bits: export its submissions",
                   TakesBinned(spec) && !spec.aggregation.return_moments ? ", or sum with binned numerics" : ""));
}

absl::Status Validate(const TensorSpec& spec) {
  const DefaultFloatEnvironment environment;
  RETURN_IF_ERROR(CheckId(spec.name, "the name of a tensor"));
  if (spec.row_width == 0) return Invalid(spec, "row_width 0; a row has at least one value");
  RETURN_IF_ERROR(ValidateTypes(spec));
  RETURN_IF_ERROR(ValidateLayouts(spec));
  RETURN_IF_ERROR(ValidateDivisor(spec));
  RETURN_IF_ERROR(ValidateCut(spec));
  RETURN_IF_ERROR(ValidateMoments(spec));
  RETURN_IF_ERROR(ValidateBinned(spec));
  return IsOrderStatistic(spec.aggregation.op) ? ValidateOrder(spec) : absl::OkStatus();
}

absl::Status CheckShape(absl::Span<const uint64_t> sizes, const TensorSpec& spec) {
  const auto refuse = [&](absl::string_view problem) {
    return Invalid(spec, absl::StrCat("shape (", absl::StrJoin(sizes, ", "), ") ", problem));
  };
  if (sizes.size() > kMaxAxes) {
    return Invalid(spec, absl::StrCat("a shape of ", sizes.size(), " axes; up to ", kMaxAxes, " are allowed"));
  }
  if (spec.num_rows == 0) return refuse("of a tensor of hashed keys, whose num_rows 0 is not the size of an array");
  using Wide = unsigned __int128;
  const Wide elements = Wide{spec.num_rows} * spec.row_width;
  Wide product = 1;
  bool fits = true;
  for (const uint64_t size : sizes) {
    fits = fits && size != 0 && product <= elements / size;
    if (fits) product *= size;
  }
  if (fits && product == elements) return absl::OkStatus();
  return refuse(absl::StrCat("does not have num_rows ", spec.num_rows, " x row_width ", spec.row_width, " elements"));
}

absl::StatusOr<std::vector<TensorSpec>> ResolveRound(RoundDraft draft) {
  if (draft.tensors.empty()) return absl::InvalidArgumentError("the spec has no tensors");
  std::vector<TensorSpec> specs;
  std::vector<ClipSpec> clips;
  absl::flat_hash_set<absl::string_view> names;
  specs.reserve(draft.tensors.size());  // so that `names` stays valid
  for (RoundDraft::Tensor& tensor : draft.tensors) {
    TensorSpec& spec = specs.emplace_back(std::move(tensor.spec));
    Combine(tensor.options, draft.options, spec);
    spec.aggregation.max_submissions = draft.max_submissions;
    if (draft.privacy.has_value()) spec.privacy.emplace();  // ResolvePrivacy sets it
    RETURN_IF_ERROR(Validate(spec));
    if (tensor.shape.has_value()) RETURN_IF_ERROR(CheckShape(*tensor.shape, spec));
    if (!draft.is_stored) RETURN_IF_ERROR(RefuseUnused(tensor.options, spec));
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), " is given twice"));
    }
    clips.push_back(tensor.clip);
  }
  if (!draft.is_stored) RETURN_IF_ERROR(RefuseUnused(draft.options, specs));
  RETURN_IF_ERROR(ResolveClips(draft.clip, clips, absl::MakeSpan(specs)));
  if (draft.privacy.has_value()) {
    if (draft.min_submissions != 0) {
      return absl::InvalidArgumentError(
          "privacy refuses min_submissions: the state of the round would tell how many submissions there are");
    }
    RETURN_IF_ERROR(ResolvePrivacy(*draft.privacy, absl::MakeSpan(specs)));
  }
  RETURN_IF_ERROR(CheckRound(draft, specs));
  return specs;
}

}  // namespace sparseagg
