#include "service/codec/spec_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/spec/validate.h"
#include "service/codec/cluster_codec.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

absl::StatusOr<absl::Duration> DecodeDuration(const google::protobuf::Duration& wire, absl::string_view field) {
  constexpr int64_t kMaxSeconds = 315'576'000'000;  // 10,000 years, the limit of google.protobuf.Duration
  if (wire.seconds() < 0 || wire.nanos() < 0 || wire.seconds() > kMaxSeconds || wire.nanos() > 999'999'999) {
    return absl::InvalidArgumentError(absl::StrCat(field, " of ", wire.seconds(), " s and ", wire.nanos(),
                                                   " ns is not a duration from 0 to 10,000 years"));
  }
  return absl::Seconds(wire.seconds()) + absl::Nanoseconds(wire.nanos());
}

void EncodeDuration(absl::Duration duration, google::protobuf::Duration* wire) {
  wire->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  wire->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

void EncodeTime(absl::Time time, google::protobuf::Timestamp* wire) {
  const int64_t seconds = absl::ToUnixSeconds(time);
  wire->set_seconds(seconds);
  wire->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
}

namespace {

absl::Status CheckEnums(const v1::AggregationSpec& spec) {
  RETURN_IF_ERROR(CheckKnown(spec.op(), "op"));
  RETURN_IF_ERROR(CheckKnown(spec.weighting(), "weighting"));
  RETURN_IF_ERROR(CheckKnown(spec.result_layout(), "result_layout"));
  RETURN_IF_ERROR(CheckKnown(spec.numerics(), "numerics"));
  RETURN_IF_ERROR(CheckKnown(spec.result_dtype(), "result_dtype"));
  RETURN_IF_ERROR(CheckKnown(spec.on_nonfinite(), "on_nonfinite"));
  RETURN_IF_ERROR(CheckKnown(spec.mean_divisor(), "mean_divisor"));
  RETURN_IF_ERROR(CheckKnown(spec.absent(), "absent"));
  return CheckKnown(spec.on_empty(), "on_empty");
}

// Returns: the enumerator; nullopt for 0, which is "not set". Values on the wire are larger by one than ours.
template <typename Host, typename Wire>
std::optional<Host> DecodeEnum(Wire wire) {
  return wire == 0 ? std::nullopt : std::optional<Host>(static_cast<Host>(static_cast<int>(wire) - 1));
}

static_assert(static_cast<int>(Op::kMax) == v1::OP_MAX - 1 && static_cast<int>(Op::kSum) == v1::OP_SUM - 1 &&
              static_cast<int>(Op::kMean) == v1::OP_MEAN - 1 &&
              static_cast<int>(Op::kCoordinateMean) == v1::OP_COORDINATE_MEAN - 1 &&
              static_cast<int>(Op::kUnion) == v1::OP_UNION - 1 && static_cast<int>(Op::kMin) == v1::OP_MIN - 1);
static_assert(static_cast<int>(AbsentPolicy::kZero) == v1::ABSENT_POLICY_ZERO - 1);
static_assert(static_cast<int>(Weighting::kByWeight) == v1::WEIGHTING_BY_WEIGHT - 1);
static_assert(static_cast<int>(ResultLayout::kDense) == v1::RESULT_LAYOUT_DENSE - 1 &&
              static_cast<int>(ResultLayout::kAuto) == v1::RESULT_LAYOUT_AUTO - 1);
static_assert(static_cast<int>(Numerics::kBinned) == v1::NUMERICS_BINNED - 1);
static_assert(static_cast<int>(NonfinitePolicy::kPropagate) == v1::NONFINITE_POLICY_PROPAGATE - 1);
static_assert(static_cast<int>(EmptyPolicy::kKeep) == v1::EMPTY_POLICY_KEEP - 1);
static_assert(static_cast<int>(MeanDivisor::kWeights) == v1::MEAN_DIVISOR_WEIGHTS - 1 &&
              static_cast<int>(MeanDivisor::kSubmissions) == v1::MEAN_DIVISOR_SUBMISSIONS - 1 &&
              static_cast<int>(MeanDivisor::kFixed) == v1::MEAN_DIVISOR_FIXED - 1);
static_assert(static_cast<int>(ClipPolicy::kReject) == v1::CLIP_POLICY_REJECT - 1);
static_assert(static_cast<int>(KeySelection::kPublic) == v1::KEY_SELECTION_PUBLIC - 1 &&
              static_cast<int>(KeySelection::kWeightedGaussian) == v1::KEY_SELECTION_WEIGHTED_GAUSSIAN - 1 &&
              static_cast<int>(KeySelection::kCountGaussian) == v1::KEY_SELECTION_COUNT_GAUSSIAN - 1);
static_assert(static_cast<int>(DType::kFloat32) == v1::DTYPE_FLOAT32 - 1 &&
              static_cast<int>(DType::kFloat16) == v1::DTYPE_FLOAT16 - 1 &&
              static_cast<int>(DType::kBFloat16) == v1::DTYPE_BFLOAT16 - 1 &&
              static_cast<int>(DType::kFloat64) == v1::DTYPE_FLOAT64 - 1 &&
              static_cast<int>(DType::kInt32) == v1::DTYPE_INT32 - 1 &&
              static_cast<int>(DType::kInt64) == v1::DTYPE_INT64 - 1 &&
              static_cast<int>(DType::kUInt32) == v1::DTYPE_UINT32 - 1 &&
              static_cast<int>(DType::kUInt64) == v1::DTYPE_UINT64 - 1);

// The wire numbers order statistics from 20 on.
std::optional<Op> DecodeOp(v1::Op op) {
  switch (op) {
    case v1::OP_MEDIAN:
      return Op::kMedian;
    case v1::OP_TRIMMED_MEAN:
      return Op::kTrimmedMean;
    case v1::OP_QUANTILE:
      return Op::kQuantile;
    default:
      return DecodeEnum<Op>(op);
  }
}

#define SPARSEAGG_TAKE(field) \
  if (wire.has_##field()) options.field = wire.field()

Options DecodeOptions(const v1::AggregationSpec& wire) {
  Options options;
  options.op = DecodeOp(wire.op());
  options.weighting = DecodeEnum<Weighting>(wire.weighting());
  options.result_layout = DecodeEnum<ResultLayout>(wire.result_layout());
  options.numerics = DecodeEnum<Numerics>(wire.numerics());
  options.result_dtype = DecodeDType(wire.result_dtype());
  options.on_nonfinite = DecodeEnum<NonfinitePolicy>(wire.on_nonfinite());
  options.on_empty = DecodeEnum<EmptyPolicy>(wire.on_empty());
  options.mean_divisor = DecodeEnum<MeanDivisor>(wire.mean_divisor());
  options.absent = DecodeEnum<AbsentPolicy>(wire.absent());
  SPARSEAGG_TAKE(return_counts);
  SPARSEAGG_TAKE(return_weights);
  SPARSEAGG_TAKE(return_moments);
  SPARSEAGG_TAKE(min_contributors);
  SPARSEAGG_TAKE(prune_zeros);
  SPARSEAGG_TAKE(fill);
  SPARSEAGG_TAKE(dense_threshold);
  SPARSEAGG_TAKE(fixed_divisor);
  SPARSEAGG_TAKE(result_top_k);
  SPARSEAGG_TAKE(result_min_norm);
  SPARSEAGG_TAKE(trim_fraction);
  SPARSEAGG_TAKE(quantile);
  return options;
}

#undef SPARSEAGG_TAKE

ClipSpec DecodeClip(const v1::ClipSpec& wire) {
  ClipSpec clip;
  if (wire.has_l2()) clip.l2 = wire.l2();
  if (wire.has_linf()) clip.linf = wire.linf();
  if (wire.has_max_keys()) clip.max_keys = wire.max_keys();
  if (wire.on_clip() != 0) clip.on_clip = static_cast<ClipPolicy>(wire.on_clip() - 1);
  return clip;
}

absl::StatusOr<PrivacySpec> DecodePrivacy(const v1::PrivacySpec& wire) {
  RETURN_IF_ERROR(CheckKnown(wire.keys(), "privacy.keys"));
  PrivacySpec privacy;
  privacy.noise_multiplier = wire.noise_multiplier();
  privacy.keys = DecodeEnum<KeySelection>(wire.keys()).value_or(privacy.keys);
  if (wire.has_key_noise_multiplier()) privacy.key_noise_multiplier = wire.key_noise_multiplier();
  if (wire.has_delta()) privacy.delta = wire.delta();
  if (wire.has_weight_bound()) privacy.weight_bound = wire.weight_bound();
  for (const v1::PublicKeys& keys : wire.public_keys()) {
    if (!privacy.public_keys.emplace(keys.tensor(), std::vector<uint64_t>(keys.keys().begin(), keys.keys().end()))
             .second) {
      return absl::InvalidArgumentError(absl::StrCat("privacy.public_keys has tensor '", keys.tensor(), "' twice"));
    }
  }
  return privacy;
}

absl::StatusOr<RoundDraft::Tensor> DecodeTensor(const v1::TensorSpec& wire) {
  const auto in_tensor = [&](const absl::Status& status) {
    return status.ok() ? status
                       : absl::Status(status.code(), absl::StrCat("tensor '", wire.name(), "': ", status.message()));
  };
  RETURN_IF_ERROR(in_tensor(CheckKnown(wire.dtype(), "dtype")));
  RETURN_IF_ERROR(in_tensor(CheckKnown(wire.layout(), "layout")));
  RETURN_IF_ERROR(in_tensor(CheckEnums(wire.aggregation())));
  RETURN_IF_ERROR(in_tensor(CheckKnown(wire.clip().on_clip(), "clip.on_clip")));
  RoundDraft::Tensor tensor;
  TensorSpec& spec = tensor.spec;
  spec.name = wire.name();
  const auto dtype = DecodeDType(wire.dtype());
  if (!dtype.has_value()) return in_tensor(absl::InvalidArgumentError("dtype is missing"));
  spec.dtype = *dtype;
  spec.num_rows = wire.num_rows();
  spec.row_width = wire.row_width() == 0 ? 1 : wire.row_width();
  spec.layout = wire.layout() == v1::TENSOR_LAYOUT_DENSE ? Layout::kDense : Layout::kSparse;
  spec.modular = wire.modular();
  tensor.options = DecodeOptions(wire.aggregation());
  tensor.clip = DecodeClip(wire.clip());
  if (wire.has_shape()) tensor.shape.emplace(wire.shape().sizes().begin(), wire.shape().sizes().end());
  return tensor;
}

// Errors: INVALID_ARGUMENT: an unknown enum value. Whether the spec makes sense, ResolveRound checks.
absl::StatusOr<RoundDraft> DecodeDraft(const v1::RoundSpec& wire) {
  RoundDraft draft;
  RETURN_IF_ERROR(CheckEnums(wire.aggregation()));
  RETURN_IF_ERROR(CheckKnown(wire.clip().on_clip(), "clip.on_clip"));
  draft.tensors.reserve(wire.tensors_size());
  for (const v1::TensorSpec& tensor : wire.tensors()) {
    ASSIGN_OR_RETURN(draft.tensors.emplace_back(), DecodeTensor(tensor));
  }
  draft.options = DecodeOptions(wire.aggregation());
  draft.clip = DecodeClip(wire.clip());
  if (wire.has_privacy()) {
    ASSIGN_OR_RETURN(draft.privacy, DecodePrivacy(wire.privacy()));
  }
  draft.min_submissions = wire.min_submissions();
  draft.max_submissions = wire.max_submissions();
  draft.keep_submissions = wire.keep_submissions();
  draft.accepts_partials = wire.accept_partials();
  draft.has_certificate = wire.has_certificate();
  draft.has_cluster = wire.has_cluster();
  return draft;
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
  if (limits.max_tensors != 0 && static_cast<uint64_t>(spec.tensors_size()) > limits.max_tensors) {
    return absl::ResourceExhaustedError(
        absl::StrCat(spec.tensors_size(), " tensors are beyond the server's max_tensors ", limits.max_tensors));
  }
  ASSIGN_OR_RETURN(RoundDraft draft, DecodeDraft(spec));
  draft.is_stored = source == SpecSource::kStore;
  ASSIGN_OR_RETURN(config.tensors, ResolveRound(std::move(draft)));
  for (const TensorSpec& tensor : config.tensors) {
    if (limits.max_row_width != 0 && tensor.row_width > limits.max_row_width) {
      return absl::ResourceExhaustedError(absl::StrCat(Quoted(tensor), ": row_width ", tensor.row_width,
                                                       " is beyond the server's max_row_width ", limits.max_row_width));
    }
    config.tensor_index.emplace(tensor.name, config.tensor_index.size());
  }
  config.has_certificate = spec.has_certificate();
  config.allows_export = spec.certificate().allow_export();
  config.min_submissions = spec.min_submissions();
  config.max_submissions = spec.max_submissions();
  config.submission_limit = limits.max_submissions;
  RETURN_IF_ERROR(DecodeLimit(spec.max_submissions(), limits.max_submissions, "max_submissions").status());
  if (limits.max_submissions != 0 && spec.min_submissions() > limits.max_submissions) {
    return absl::InvalidArgumentError(absl::StrCat("min_submissions ", spec.min_submissions(),
                                                   " is beyond max_submissions ", limits.max_submissions));
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
  }
  config.stays_open = spec.stay_open();
  config.accepts_partials = spec.accept_partials();
  config.wire_spec = SerializeDeterministic(spec);
  return config;
}

}  // namespace sparseagg::service
