#include "host/cpu/prepare/terms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "host/cpu/rows/wire_value.h"
#include "host/cpu/simd/kernels.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {
namespace {

// Each product is rounded once. With 1 it is exact, so uniform sums need no loop of their own.
template <DType kDType>
void LoadFloat(const std::byte* values, uint64_t size, uint64_t first, size_t count, const TermParams& params,
               double* terms) {
  LoadFloats(values + first * SizeOf(kDType), kDType, count, size - first, params.value_scale, terms);
}

template <DType kDType>
void LoadFixed(const std::byte* values, uint64_t size, uint64_t first, size_t count, const TermParams& params,
               int64_t* terms) {
  constexpr size_t kBatch = 256;
  double products[kBatch + kVectorSlack];
  for (size_t done = 0; done < count; done += kBatch) {
    const size_t n = std::min(kBatch, count - done);
    LoadFloat<kDType>(values, size, first + done, n, params, products);
    QuantiseTerms(products, n, params.bound, params.scale, terms + done);
  }
}

// Products fit int64: PrepareUpdate refuses updates in which one does not.
template <typename Wire>
void LoadInteger(const std::byte* values, uint64_t, uint64_t first, size_t count, const TermParams& params,
                 int64_t* terms) {
  for (size_t i = 0; i < count; ++i) {
    terms[i] = static_cast<int64_t>(LoadWire<Wire>(values, first + i)) * params.integer_weight;
  }
}

template <typename Wire>
void LoadModular(const std::byte* values, uint64_t, uint64_t first, size_t count, const TermParams&, uint64_t* terms) {
  for (size_t i = 0; i < count; ++i) terms[i] = LoadWire<Wire>(values, first + i);
}

}  // namespace

template <>
LoadTerms<double> TermLoader<double>(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return LoadFloat<DType::kFloat16>;
    case DType::kBFloat16:
      return LoadFloat<DType::kBFloat16>;
    case DType::kFloat64:
      return LoadFloat<DType::kFloat64>;
    default:
      return LoadFloat<DType::kFloat32>;
  }
}

template <>
LoadTerms<int64_t> TermLoader<int64_t>(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return LoadFixed<DType::kFloat16>;
    case DType::kBFloat16:
      return LoadFixed<DType::kBFloat16>;
    case DType::kFloat32:
      return LoadFixed<DType::kFloat32>;
    case DType::kFloat64:
      return LoadFixed<DType::kFloat64>;
    case DType::kInt32:
      return LoadInteger<int32_t>;
    default:
      return LoadInteger<int64_t>;
  }
}

template <>
LoadTerms<uint64_t> TermLoader<uint64_t>(DType dtype) {
  return dtype == DType::kUInt32 ? LoadModular<uint32_t> : LoadModular<uint64_t>;
}

TermParams MakeTermParams(const TensorSpec& spec, ValueScale scale) {
  TermParams params;
  params.value_scale.factor = scale.factor;
  const AggregationSpec& a = spec.aggregation;
  if (a.op == Op::kMin || a.op == Op::kMax || a.op == Op::kUnion) return params;  // unweighted
  params.value_scale = scale;
  if (IsSignedInteger(spec.dtype)) params.integer_weight = static_cast<int64_t>(scale.weight);
  if (UsesFixedPoint(spec)) {
    params.bound = a.value_bound;
    params.scale = std::ldexp(1.0, ValueShift(a));
  }
  return params;
}

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
