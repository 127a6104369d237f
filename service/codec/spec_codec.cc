#include "service/codec/spec_codec.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "host/base/status_macros.h"
#include "host/partial.h"
#include "host/spec/privacy.h"
#include "host/spec/resolve_clips.h"
#include "service/codec/cluster_codec.h"
#include "service/codec/duration_codec.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {
namespace {

// NumPy's limit in its oldest supported versions.
constexpr int kMaxAxes = 32;

// Errors: INVALID_ARGUMENT: an unknown enum value; the message lists the known ones. 0 ("not set") is known.
template <typename Wire>
absl::Status CheckKnown(Wire value, absl::string_view field) {
  const auto* descriptor = google::protobuf::GetEnumDescriptor<Wire>();
  if (descriptor->FindValueByNumber(static_cast<int>(value)) != nullptr) return absl::OkStatus();
  std::string known;
  for (int i = 0; i < descriptor->value_count(); ++i) {
    absl::StrAppend(&known, i == 0 ? "" : ", ", descriptor->value(i)->name());
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " ", static_cast<int>(value), " is unknown here; known are ", known));
}

absl::Status CheckEnums(const v1::AggregationSpec& spec) {
  RETURN_IF_ERROR(CheckKnown(spec.op(), "op"));
  RETURN_IF_ERROR(CheckKnown(spec.weighting(), "weighting"));
  RETURN_IF_ERROR(CheckKnown(spec.result_layout(), "result_layout"));
  RETURN_IF_ERROR(CheckKnown(spec.numerics(), "numerics"));
  RETURN_IF_ERROR(CheckKnown(spec.result_dtype(), "result_dtype"));
  RETURN_IF_ERROR(CheckKnown(spec.on_nonfinite(), "on_nonfinite"));
  RETURN_IF_ERROR(CheckKnown(spec.on_bound(), "on_bound"));
  RETURN_IF_ERROR(CheckKnown(spec.mean_divisor(), "mean_divisor"));
  RETURN_IF_ERROR(CheckKnown(spec.absent(), "absent"));
  return CheckKnown(spec.on_empty(), "on_empty");
}

// Returns: the tensor's value, or the round's if the tensor sets none, or `fallback` if neither does. Enums on the wire
// have 0 for "not set", so their values are larger by one than ours.
template <typename Host, typename Wire>
Host Choose(Wire tensor, Wire round, Host fallback) {
  const int chosen = tensor != 0 ? tensor : round;
  return chosen == 0 ? fallback : static_cast<Host>(chosen - 1);
}

static_assert(static_cast<int>(Op::kMax) == v1::OP_MAX - 1 && static_cast<int>(Op::kSum) == v1::OP_SUM - 1 &&
              static_cast<int>(Op::kMean) == v1::OP_MEAN - 1 &&
              static_cast<int>(Op::kCoordinateMean) == v1::OP_COORDINATE_MEAN - 1 &&
              static_cast<int>(Op::kUnion) == v1::OP_UNION - 1 && static_cast<int>(Op::kMin) == v1::OP_MIN - 1);
static_assert(static_cast<int>(AbsentPolicy::kZero) == v1::ABSENT_POLICY_ZERO - 1);
static_assert(static_cast<int>(Weighting::kByWeight) == v1::WEIGHTING_BY_WEIGHT - 1);
static_assert(static_cast<int>(ResultLayout::kDense) == v1::RESULT_LAYOUT_DENSE - 1 &&
              static_cast<int>(ResultLayout::kAuto) == v1::RESULT_LAYOUT_AUTO - 1);
static_assert(static_cast<int>(Numerics::kFixedPoint) == v1::NUMERICS_FIXED_POINT - 1);
static_assert(static_cast<int>(NonfinitePolicy::kPropagate) == v1::NONFINITE_POLICY_PROPAGATE - 1);
static_assert(static_cast<int>(BoundPolicy::kClip) == v1::BOUND_POLICY_CLIP - 1);
static_assert(static_cast<int>(EmptyPolicy::kKeep) == v1::EMPTY_POLICY_KEEP - 1);
static_assert(static_cast<int>(MeanDivisor::kWeights) == v1::MEAN_DIVISOR_WEIGHTS - 1 &&
              static_cast<int>(MeanDivisor::kSubmissions) == v1::MEAN_DIVISOR_SUBMISSIONS - 1 &&
              static_cast<int>(MeanDivisor::kFixed) == v1::MEAN_DIVISOR_FIXED - 1);
static_assert(static_cast<int>(ClipPolicy::kReject) == v1::CLIP_POLICY_REJECT - 1);
static_assert(static_cast<int>(KeySelection::kPublic) == v1::KEY_SELECTION_PUBLIC - 1 &&
              static_cast<int>(KeySelection::kWeightedGaussian) == v1::KEY_SELECTION_WEIGHTED_GAUSSIAN - 1 &&
              static_cast<int>(KeySelection::kCountGaussian) == v1::KEY_SELECTION_COUNT_GAUSSIAN - 1 &&
              static_cast<int>(KeySelection::kTruncatedGeometric) == v1::KEY_SELECTION_TRUNCATED_GEOMETRIC - 1);
static_assert(static_cast<int>(DType::kFloat32) == v1::DTYPE_FLOAT32 - 1 &&
              static_cast<int>(DType::kFloat16) == v1::DTYPE_FLOAT16 - 1 &&
              static_cast<int>(DType::kBFloat16) == v1::DTYPE_BFLOAT16 - 1 &&
              static_cast<int>(DType::kFloat64) == v1::DTYPE_FLOAT64 - 1 &&
              static_cast<int>(DType::kInt32) == v1::DTYPE_INT32 - 1 &&
              static_cast<int>(DType::kInt64) == v1::DTYPE_INT64 - 1 &&
              static_cast<int>(DType::kUInt32) == v1::DTYPE_UINT32 - 1 &&
              static_cast<int>(DType::kUInt64) == v1::DTYPE_UINT64 - 1);

// Returns: the tensor's op, or the round's if the tensor sets none. The wire numbers order statistics from 20 on.
Op ChooseOp(v1::Op tensor, v1::Op round) {
  switch (tensor != v1::OP_UNSPECIFIED ? tensor : round) {
    case v1::OP_MEDIAN:
      return Op::kMedian;
    case v1::OP_TRIMMED_MEAN:
      return Op::kTrimmedMean;
    case v1::OP_QUANTILE:
      return Op::kQuantile;
    default:
      return Choose(tensor, round, Op::kSum);
  }
}

// Returns: the tensor's options where it sets them, and else the round's.
OrderOptions CombineOrder(const v1::AggregationSpec& tensor, const v1::AggregationSpec& round) {
  OrderOptions order;
  const v1::AggregationSpec& trim = tensor.has_trim_fraction() ? tensor : round;
  if (trim.has_trim_fraction()) order.trim_fraction = trim.trim_fraction();
  const v1::AggregationSpec& quantile = tensor.has_quantile() ? tensor : round;
  if (quantile.has_quantile()) order.quantile = quantile.quantile();
  order.absent = Choose(tensor.absent(), round.absent(), AbsentPolicy::kSkip);
  return order;
}

#define SPARSEAGG_PICK(field) (tensor.has_##field() ? tensor.field() : round.field())

AggregationSpec Combine(const v1::AggregationSpec& tensor, const v1::AggregationSpec& round, Layout layout,
                        uint64_t max_submissions) {
  AggregationSpec spec;
  spec.op = ChooseOp(tensor.op(), round.op());
  spec.order = CombineOrder(tensor, round);
  spec.weighting = Choose(tensor.weighting(), round.weighting(), Weighting::kUniform);
  spec.result_layout = Choose(tensor.result_layout(), round.result_layout(),
                              layout == Layout::kDense ? ResultLayout::kDense : ResultLayout::kSparse);
  spec.numerics = Choose(tensor.numerics(), round.numerics(), Numerics::kCanonical);
  spec.return_counts = SPARSEAGG_PICK(return_counts);
  spec.return_weights = SPARSEAGG_PICK(return_weights);
  spec.return_moments = SPARSEAGG_PICK(return_moments);
  if (tensor.has_min_contributors() || round.has_min_contributors()) {
    spec.min_contributors = SPARSEAGG_PICK(min_contributors);
  }
  spec.prune_zeros = SPARSEAGG_PICK(prune_zeros);
  spec.fill = SPARSEAGG_PICK(fill);
  if (tensor.has_dense_threshold() || round.has_dense_threshold()) {
    spec.dense_threshold = SPARSEAGG_PICK(dense_threshold);
  }
  spec.result_dtype = DecodeDType(tensor.result_dtype() != 0 ? tensor.result_dtype() : round.result_dtype());
  spec.on_nonfinite = Choose(tensor.on_nonfinite(), round.on_nonfinite(), NonfinitePolicy::kReject);
  spec.on_bound = Choose(tensor.on_bound(), round.on_bound(), BoundPolicy::kReject);
  spec.on_empty = Choose(tensor.on_empty(), round.on_empty(), EmptyPolicy::kFail);
  spec.mean_divisor = Choose(tensor.mean_divisor(), round.mean_divisor(), MeanDivisor::kWeights);
  // A divisor of the round is not for a tensor with another kind of divisor.
  if (tensor.has_fixed_divisor() || (round.has_fixed_divisor() && spec.mean_divisor == MeanDivisor::kFixed)) {
    spec.fixed_divisor = SPARSEAGG_PICK(fixed_divisor);
  }
  spec.value_bound = SPARSEAGG_PICK(value_bound);
  spec.weight_bound = SPARSEAGG_PICK(weight_bound);
  spec.max_submissions = max_submissions;
  return spec;
}

#undef SPARSEAGG_PICK

// Sets the tensor's cut of the result: its own, or the round's if the result can be cut.
void CombineCut(const v1::AggregationSpec& tensor, const v1::AggregationSpec& round, TensorSpec& spec) {
  AggregationSpec& a = spec.aggregation;
  const v1::AggregationSpec& of_round = HasNorms(spec) ? round : v1::AggregationSpec::default_instance();
  a.result_top_k = tensor.has_result_top_k() ? tensor.result_top_k() : of_round.result_top_k();
  a.result_min_norm = tensor.has_result_min_norm() ? tensor.result_min_norm() : of_round.result_min_norm();
}

ClipSpec DecodeClip(const v1::ClipSpec& wire) {
  ClipSpec clip;
  if (wire.has_l2()) clip.l2 = wire.l2();
  if (wire.has_linf()) clip.linf = wire.linf();
  if (wire.has_max_keys()) clip.max_keys = wire.max_keys();
  if (wire.on_clip() != 0) clip.on_clip = static_cast<ClipPolicy>(wire.on_clip() - 1);
  return clip;
}

// Sets the bounds of all tensors.
absl::Status DecodeClips(const v1::RoundSpec& wire, std::vector<TensorSpec>& tensors) {
  if (wire.has_clip()) RETURN_IF_ERROR(CheckKnown(wire.clip().on_clip(), "clip.on_clip"));
  std::vector<ClipSpec> own;
  for (const v1::TensorSpec& tensor : wire.tensors()) own.push_back(DecodeClip(tensor.clip()));
  return ResolveClips(DecodeClip(wire.clip()), own, absl::MakeSpan(tensors));
}

// Sets the privacy options of all tensors, if the round has any.
absl::Status DecodePrivacy(const v1::RoundSpec& wire, std::vector<TensorSpec>& tensors) {
  if (!wire.has_privacy()) return absl::OkStatus();
  const v1::PrivacySpec& privacy = wire.privacy();
  RETURN_IF_ERROR(CheckKnown(privacy.keys(), "privacy.keys"));
  if (wire.min_submissions() != 0) {
    return absl::InvalidArgumentError(
        "privacy refuses min_submissions: the state of the round would tell how many submissions there are");
  }
  PrivacySpec spec;
  spec.noise_multiplier = privacy.noise_multiplier();
  spec.keys = Choose(privacy.keys(), v1::KEY_SELECTION_UNSPECIFIED, KeySelection::kWeightedGaussian);
  if (privacy.has_key_noise_multiplier()) spec.key_noise_multiplier = privacy.key_noise_multiplier();
  if (privacy.has_key_epsilon()) spec.key_epsilon = privacy.key_epsilon();
  if (privacy.has_delta()) spec.delta = privacy.delta();
  for (const v1::PublicKeys& keys : privacy.public_keys()) {
    if (!spec.public_keys.emplace(keys.tensor(), std::vector<uint64_t>(keys.keys().begin(), keys.keys().end()))
             .second) {
      return absl::InvalidArgumentError(absl::StrCat("privacy.public_keys has tensor '", keys.tensor(), "' twice"));
    }
  }
  return ResolvePrivacy(spec, absl::MakeSpan(tensors));
}

bool HasFixedPoint(const TensorSpec& spec) { return spec.aggregation.numerics == Numerics::kFixedPoint; }

// Errors: INVALID_ARGUMENT: `wire`, which is not fixed point, has bounds. Callers would think that they are enforced.
absl::Status RefuseBounds(const v1::AggregationSpec& wire) {
  const absl::string_view unused = wire.has_value_bound()                     ? "value_bound"
                                   : wire.has_weight_bound()                  ? "weight_bound"
                                   : wire.on_bound() == v1::BOUND_POLICY_CLIP ? "on_bound CLIP"
                                                                              : "";
  if (unused.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(unused, " is for fixed_point numerics; canonical sums have none"));
}

// Errors: INVALID_ARGUMENT: `wire` has an option of order statistics that the op of no tensor uses.
absl::Status RefuseUnusedOrder(const v1::AggregationSpec& wire, absl::Span<const TensorSpec> tensors) {
  const auto is_used = [&](auto uses) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const TensorSpec& s) { return uses(s.aggregation.op); });
  };
  if (wire.has_trim_fraction() && !is_used([](Op op) { return op == Op::kTrimmedMean; })) {
    return absl::InvalidArgumentError("trim_fraction is for the op trimmed_mean");
  }
  if (wire.has_quantile() && !is_used([](Op op) { return op == Op::kQuantile; })) {
    return absl::InvalidArgumentError("quantile is for the op quantile");
  }
  if (wire.absent() != v1::ABSENT_POLICY_UNSPECIFIED && !is_used(IsOrderStatistic)) {
    return absl::InvalidArgumentError("absent is for the ops median, trimmed_mean and quantile");
  }
  return absl::OkStatus();
}

// Errors: INVALID_ARGUMENT: the round's options `wire` cut results, and no tensor has a result that can be cut.
absl::Status RefuseUnusedCut(const v1::AggregationSpec& wire, absl::Span<const TensorSpec> tensors) {
  if (std::any_of(tensors.begin(), tensors.end(), HasNorms)) return absl::OkStatus();
  const absl::string_view unused = wire.result_top_k() != 0        ? "result_top_k"
                                   : wire.result_min_norm() != 0.0 ? "result_min_norm"
                                                                   : "";
  if (unused.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(unused, " has no effect: no tensor has the result_layout sparse and values that are not modular"));
}

// Errors: INVALID_ARGUMENT unless the shape has num_rows · row_width elements.
absl::Status CheckShape(const v1::Shape& shape, const TensorSpec& spec) {
  const auto refuse = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(spec), ": shape (", absl::StrJoin(shape.sizes(), ", "), ") ", problem));
  };
  if (shape.sizes_size() > kMaxAxes) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(spec), ": a shape of ", shape.sizes_size(), " axes; up to ", kMaxAxes, " are allowed"));
  }
  if (spec.num_rows == 0) return refuse("of a tensor of hashed keys, whose num_rows 0 is not the size of an array");
  using Wide = unsigned __int128;
  const Wide elements = Wide{spec.num_rows} * spec.row_width;
  Wide product = 1;
  bool fits = true;
  for (const uint64_t size : shape.sizes()) {
    fits = fits && size != 0 && product <= elements / size;
    if (fits) product *= size;
  }
  if (fits && product == elements) return absl::OkStatus();
  return refuse(absl::StrCat("does not have num_rows ", spec.num_rows, " x row_width ", spec.row_width, " elements"));
}

absl::StatusOr<TensorSpec> DecodeTensor(const v1::TensorSpec& wire, const v1::RoundSpec& round, const Limits& limits) {
  const auto in_tensor = [&](const absl::Status& status) {
    return status.ok() ? status
                       : absl::Status(status.code(), absl::StrCat("tensor '", wire.name(), "': ", status.message()));
  };
  RETURN_IF_ERROR(in_tensor(CheckKnown(wire.dtype(), "dtype")));
  RETURN_IF_ERROR(in_tensor(CheckKnown(wire.layout(), "layout")));
  RETURN_IF_ERROR(in_tensor(CheckEnums(wire.aggregation())));
  RETURN_IF_ERROR(in_tensor(CheckKnown(wire.clip().on_clip(), "clip.on_clip")));
  TensorSpec spec;
  spec.name = wire.name();
  const auto dtype = DecodeDType(wire.dtype());
  if (!dtype.has_value()) return in_tensor(absl::InvalidArgumentError("dtype is missing"));
  spec.dtype = *dtype;
  spec.num_rows = wire.num_rows();
  spec.row_width = wire.row_width() == 0 ? 1 : wire.row_width();
  spec.layout = wire.layout() == v1::TENSOR_LAYOUT_DENSE ? Layout::kDense : Layout::kSparse;
  spec.modular = wire.modular();
  spec.aggregation = Combine(wire.aggregation(), round.aggregation(), spec.layout, round.max_submissions());
  CombineCut(wire.aggregation(), round.aggregation(), spec);
  if (round.has_privacy()) spec.privacy.emplace();  // DecodePrivacy sets it
  RETURN_IF_ERROR(Validate(spec));
  if (wire.has_shape()) RETURN_IF_ERROR(CheckShape(wire.shape(), spec));
  if (!HasFixedPoint(spec)) RETURN_IF_ERROR(in_tensor(RefuseBounds(wire.aggregation())));
  RETURN_IF_ERROR(in_tensor(RefuseUnusedOrder(wire.aggregation(), {&spec, 1})));
  if (limits.max_row_width != 0 && spec.row_width > limits.max_row_width) {
    return absl::ResourceExhaustedError(absl::StrCat(Quoted(spec), ": row_width ", spec.row_width,
                                                     " is beyond the server's max_row_width ", limits.max_row_width));
  }
  return spec;
}

// Returns: the spec's limit `asked`, or the server's `limit` if the spec has none (0).
// Errors: RESOURCE_EXHAUSTED: the spec's limit is beyond the server's.
absl::StatusOr<uint64_t> DecodeLimit(uint64_t asked, uint64_t limit, absl::string_view name) {
  if (asked == 0) return limit;
  if (limit != 0 && asked > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(name, " ", asked, " is beyond the server's ", name, " ", limit));
  }
  return asked;
}

absl::Status DecodeTimes(const v1::RoundSpec& spec, const Limits& limits, RoundConfig& config) {
  if (spec.has_deadline()) {
    ASSIGN_OR_RETURN(config.deadline, DecodeDuration(spec.deadline(), "deadline"));
    if (config.deadline <= absl::ZeroDuration()) return absl::InvalidArgumentError("deadline is not positive");
  }
  config.result_ttl = limits.max_result_ttl;
  if (spec.has_result_ttl()) {
    ASSIGN_OR_RETURN(config.result_ttl, DecodeDuration(spec.result_ttl(), "result_ttl"));
    if (config.result_ttl <= absl::ZeroDuration()) return absl::InvalidArgumentError("result_ttl is not positive");
    if (config.result_ttl > limits.max_result_ttl) {
      return absl::ResourceExhaustedError(absl::StrCat("result_ttl ", absl::FormatDuration(config.result_ttl),
                                                       " is beyond the server's max_result_ttl ",
                                                       absl::FormatDuration(limits.max_result_ttl)));
    }
  }
  return absl::OkStatus();
}

// Errors: INVALID_ARGUMENT: the round cannot take partials, and shall.
absl::Status CheckAcceptsPartials(const RoundConfig& config) {
  if (!config.accepts_partials) return absl::OkStatus();
  const auto refuse = [](absl::string_view other, absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat("accept_partials and ", other, " exclude each other: ", reason));
  };
  if (config.HasPrivacy()) return refuse("privacy", "a partial's submissions have no noise");
  if (config.has_certificate) return refuse("certificate", "nobody can tell which submissions a partial has");
  if (config.keep_submissions) return refuse("keep_submissions", "a partial has none of its submissions");
  if (config.HasClip()) return refuse("clip", "the bounds are for single submissions, which a partial does not have");
  for (const TensorSpec& spec : config.tensors) {
    if (OrderMatters(spec)) {
      return absl::InvalidArgumentError(absl::StrCat("accept_partials: ", CheckHasPartials(spec).message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string SerializeDeterministic(const google::protobuf::MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

std::optional<DType> DecodeDType(int dtype) {
  if (dtype < v1::DTYPE_FLOAT32 || dtype > v1::DTYPE_UINT64) return std::nullopt;
  return static_cast<DType>(dtype - 1);
}

int EncodeDType(DType dtype) { return static_cast<int>(dtype) + 1; }

absl::StatusOr<RoundConfig> DecodeRoundSpec(const v1::RoundSpec& spec, const Limits& limits, SpecSource source) {
  RoundConfig config;
  if (spec.tensors().empty()) return absl::InvalidArgumentError("the spec has no tensors");
  if (limits.max_tensors != 0 && static_cast<uint64_t>(spec.tensors_size()) > limits.max_tensors) {
    return absl::ResourceExhaustedError(
        absl::StrCat(spec.tensors_size(), " tensors are beyond the server's max_tensors ", limits.max_tensors));
  }
  RETURN_IF_ERROR(CheckEnums(spec.aggregation()));
  for (const v1::TensorSpec& tensor : spec.tensors()) {
    ASSIGN_OR_RETURN(TensorSpec decoded, DecodeTensor(tensor, spec, limits));
    if (!config.tensor_index.emplace(decoded.name, config.tensors.size()).second) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(decoded), " is given twice"));
    }
    config.tensors.push_back(std::move(decoded));
  }
  if (std::none_of(config.tensors.begin(), config.tensors.end(), HasFixedPoint)) {
    RETURN_IF_ERROR(RefuseBounds(spec.aggregation()));
  }
  RETURN_IF_ERROR(DecodeClips(spec, config.tensors));
  RETURN_IF_ERROR(DecodePrivacy(spec, config.tensors));
  RETURN_IF_ERROR(RefuseUnusedOrder(spec.aggregation(), config.tensors));
  RETURN_IF_ERROR(RefuseUnusedCut(spec.aggregation(), config.tensors));
  config.has_certificate = spec.has_certificate();
  config.allows_export = spec.certificate().allow_export();
  if (config.has_certificate && config.HasPrivacy()) {
    return absl::InvalidArgumentError(
        "certificate and privacy exclude each other: the certificate tells how many submissions there are");
  }
  config.min_submissions = spec.min_submissions();
  config.max_submissions = spec.max_submissions();
  config.submission_limit = limits.max_submissions;
  RETURN_IF_ERROR(DecodeLimit(spec.max_submissions(), limits.max_submissions, "max_submissions").status());
  const uint64_t most = spec.max_submissions() != 0 ? spec.max_submissions() : limits.max_submissions;
  if (most != 0 && spec.min_submissions() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_submissions ", spec.min_submissions(), " is beyond max_submissions ", most));
  }
  ASSIGN_OR_RETURN(
      config.max_tuples_per_submission,
      DecodeLimit(spec.max_tuples_per_submission(), limits.max_tuples_per_submission, "max_tuples_per_submission"));
  ASSIGN_OR_RETURN(
      config.max_bytes_per_submission,
      DecodeLimit(spec.max_bytes_per_submission(), limits.max_bytes_per_submission, "max_bytes_per_submission"));
  RETURN_IF_ERROR(DecodeTimes(spec, limits, config));
  config.keep_submissions = spec.keep_submissions();
  if (spec.has_cluster()) {
    ASSIGN_OR_RETURN(config.homes, DecodeCluster(spec.cluster()));
    if (source == SpecSource::kClient && config.HasPrivacy()) {
      return absl::InvalidArgumentError(
          "privacy and cluster exclude each other: servers export no submissions of rounds with privacy");
    }
  }
  config.stays_open = spec.stay_open();
  config.accepts_partials = spec.accept_partials();
  RETURN_IF_ERROR(CheckAcceptsPartials(config));
  config.wire_spec = SerializeDeterministic(spec);
  return config;
}

}  // namespace sparseagg::service
