#include "host/cpu/prepare/terms.h"

#include <algorithm>
#include <cmath>

#include "host/cpu/rows/wire_value.h"
#include "host/cpu/simd/kernels.h"
#include "host/spec/fixed_point.h"

namespace sparseagg::cpu {
namespace {

using FloatLoader = void (*)(const void* values, size_t count, size_t readable, ValueScale scale, double* terms);

// Each product is rounded once. With 1 it is exact, so uniform sums need no loop of their own.
template <typename Wire, FloatLoader kLoad>
void LoadFloat(const std::byte* values, uint64_t size, uint64_t first, size_t count, const TermParams& params,
               double* terms) {
  kLoad(values + first * sizeof(Wire), count, size - first, params.value_scale, terms);
}

template <typename Wire, FloatLoader kLoad>
void LoadFixed(const std::byte* values, uint64_t size, uint64_t first, size_t count, const TermParams& params,
               int64_t* terms) {
  constexpr size_t kBatch = 256;
  double products[kBatch + kVectorSlack];
  for (size_t done = 0; done < count; done += kBatch) {
    const size_t n = std::min(kBatch, count - done);
    kLoad(values + (first + done) * sizeof(Wire), n, size - first - done, params.value_scale, products);
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
      return LoadFloat<Float16, LoadFloat16>;
    case DType::kBFloat16:
      return LoadFloat<BFloat16, LoadBFloat16>;
    case DType::kFloat64:
      return LoadFloat<double, LoadFloat64>;
    default:
      return LoadFloat<float, LoadFloat32>;
  }
}

template <>
LoadTerms<int64_t> TermLoader<int64_t>(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return LoadFixed<Float16, LoadFloat16>;
    case DType::kBFloat16:
      return LoadFixed<BFloat16, LoadBFloat16>;
    case DType::kFloat32:
      return LoadFixed<float, LoadFloat32>;
    case DType::kFloat64:
      return LoadFixed<double, LoadFloat64>;
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

}  // namespace sparseagg::cpu
