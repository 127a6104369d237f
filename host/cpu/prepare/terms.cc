#include "host/cpu/prepare/terms.h"

#include <algorithm>

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
  return dtype == DType::kInt32 ? LoadInteger<int32_t> : LoadInteger<int64_t>;
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
  return params;
}

namespace {

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

absl::Status CheckTerms(const TensorSpec& spec, const CpuUpdate& update) {
  if (update.values == nullptr || !MultipliesByWeight(spec.aggregation.op)) return absl::OkStatus();
  if (IsSignedInteger(spec.dtype) && update.weight != 1.0) {
    return update.dtype == DType::kInt32 ? CheckProducts<int32_t>(spec, update) : CheckProducts<int64_t>(spec, update);
  }
  return absl::OkStatus();
}

}  // namespace sparseagg::cpu
