#include "python/engine/specs.h"

#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>

#include "host/spec/privacy.h"
#include "host/spec/resolve_clips.h"
#include "python/engine/errors.h"

namespace sparseagg::python {
namespace {

namespace py = pybind11;

// Returns: the enumerator whose Python name fields[field] is; names[i] is the name of enumerator i.
template <typename Enum, size_t kCount>
Enum Parse(const py::dict& fields, const char* field, const char* const (&names)[kCount]) {
  const auto name = fields[field].cast<std::string>();
  for (size_t i = 0; i < kCount; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
  }
  throw py::value_error(std::string(field) + " '" + name + "' is unknown here");
}

template <typename T>
void Set(const py::dict& fields, const char* field, T& out) {
  const py::object value = fields[field];
  if (!value.is_none()) out = value.cast<T>();
}

template <typename T>
void Set(const py::dict& fields, const char* field, std::optional<T>& out) {
  const py::object value = fields[field];
  if (!value.is_none()) out = value.cast<T>();
}

AggregationSpec ToAggregation(const py::dict& fields) {
  AggregationSpec a;
  a.op = Parse<Op>(fields, "op",
                   {"sum", "mean", "coordinate_mean", "union", "min", "max", "median", "trimmed_mean", "quantile"});
  a.weighting = Parse<Weighting>(fields, "weighting", {"uniform", "by_weight"});
  a.result_layout = Parse<ResultLayout>(fields, "result", {"sparse", "dense", "auto"});
  a.numerics = Parse<Numerics>(fields, "numerics", {"canonical", "fixed_point"});
  a.on_nonfinite = Parse<NonfinitePolicy>(fields, "on_nonfinite", {"reject", "propagate"});
  a.on_bound = Parse<BoundPolicy>(fields, "on_bound", {"reject", "clip"});
  if (fields.contains("mean_divisor")) {
    a.mean_divisor = Parse<MeanDivisor>(fields, "mean_divisor", {"weights", "submissions", "fixed"});
    Set(fields, "fixed_divisor", a.fixed_divisor);
  }
  if (fields.contains("on_empty")) a.on_empty = Parse<EmptyPolicy>(fields, "on_empty", {"fail", "keep"});
  Set(fields, "return_counts", a.return_counts);
  Set(fields, "return_weights", a.return_weights);
  Set(fields, "return_moments", a.return_moments);
  Set(fields, "min_contributors", a.min_contributors);
  Set(fields, "prune_zeros", a.prune_zeros);
  Set(fields, "fill", a.fill);
  Set(fields, "value_bound", a.value_bound);
  Set(fields, "weight_bound", a.weight_bound);
  Set(fields, "max_submissions", a.max_submissions);
  a.order.absent = Parse<AbsentPolicy>(fields, "absent", {"skip", "zero"});
  Set(fields, "trim_fraction", a.order.trim_fraction);
  Set(fields, "quantile", a.order.quantile);
  Set(fields, "result_top_k", a.result_top_k);
  Set(fields, "result_min_norm", a.result_min_norm);
  Set(fields, "dense_threshold", a.dense_threshold);
  const py::object result_dtype = fields["result_dtype"];
  if (!result_dtype.is_none()) a.result_dtype = ParseDType(result_dtype.cast<std::string>());
  return a;
}

// Returns: the bounds in fields[name], a dictionary or None.
ClipSpec ToClip(const py::dict& fields, const char* name) {
  ClipSpec clip;
  if (!fields.contains(name) || fields[name].is_none()) return clip;
  const auto bounds = fields[name].cast<py::dict>();
  Set(bounds, "l2", clip.l2);
  Set(bounds, "linf", clip.linf);
  Set(bounds, "max_keys", clip.max_keys);
  if (!bounds["on_clip"].is_none()) clip.on_clip = Parse<ClipPolicy>(bounds, "on_clip", {"clip", "reject"});
  return clip;
}

// Returns: the privacy options in fields["privacy"], a dictionary or None.
std::optional<PrivacySpec> ToPrivacy(const py::dict& fields) {
  if (!fields.contains("privacy") || fields["privacy"].is_none()) return std::nullopt;
  const auto options = fields["privacy"].cast<py::dict>();
  PrivacySpec privacy;
  Set(options, "noise_multiplier", privacy.noise_multiplier);
  privacy.keys =
      Parse<KeySelection>(options, "keys", {"public", "weighted_gaussian", "count_gaussian", "truncated_geometric"});
  Set(options, "key_noise_multiplier", privacy.key_noise_multiplier);
  Set(options, "key_epsilon", privacy.key_epsilon);
  Set(options, "delta", privacy.delta);
  privacy.public_keys = options["public_keys"].cast<std::map<std::string, std::vector<uint64_t>>>();
  return privacy;
}

}  // namespace

DType ParseDType(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(DType::kUInt64); ++i) {
    if (Name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  throw py::value_error("dtype '" + name + "' is unknown here");
}

std::vector<TensorSpec> ToTensorSpecs(const py::list& tensors) {
  std::vector<TensorSpec> specs;
  ClipSpec round_clip;
  std::vector<ClipSpec> clips;
  std::optional<PrivacySpec> privacy;
  for (const py::handle item : tensors) {
    const auto fields = item.cast<py::dict>();
    TensorSpec spec;
    Set(fields, "name", spec.name);
    spec.dtype = ParseDType(fields["dtype"].cast<std::string>());
    Set(fields, "num_rows", spec.num_rows);
    Set(fields, "row_width", spec.row_width);
    spec.layout = Parse<Layout>(fields, "layout", {"sparse", "dense"});
    Set(fields, "modular", spec.modular);
    spec.aggregation = ToAggregation(fields);
    if (specs.empty()) {  // the options of the round are those of each tensor
      round_clip = ToClip(fields, "round_clip");
      privacy = ToPrivacy(fields);
    }
    clips.push_back(ToClip(fields, "clip"));
    specs.push_back(std::move(spec));
  }
  ThrowIfError(ResolveClips(round_clip, clips, absl::MakeSpan(specs)));
  if (privacy.has_value()) ThrowIfError(ResolvePrivacy(*privacy, absl::MakeSpan(specs)));
  return specs;
}

}  // namespace sparseagg::python
