#include "host/model/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/model/optimizer.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes it again for each target.
#include "host/base/half.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg {
namespace HWY_NAMESPACE {
namespace {

// Values that are computed at a time: small enough for the L1 cache.
constexpr size_t kBatch = 256;

template <typename T, typename Convert>
void WidenAs(const void* from, size_t n, double* out, Convert convert) {
  for (size_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(from) + i * sizeof(T), sizeof(T));
    out[i] = static_cast<double>(convert(value));
  }
}

void Widen(DType dtype, const void* from, size_t n, double* out) {
  const auto same = [](auto value) { return value; };
  switch (dtype) {
    case DType::kFloat64:
      return WidenAs<double>(from, n, out, same);
    case DType::kFloat16:
      return WidenAs<uint16_t>(from, n, out, WidenFloat16);
    case DType::kBFloat16:
      return WidenAs<uint16_t>(from, n, out, WidenBFloat16);
    default:
      return WidenAs<float>(from, n, out, same);
  }
}

// Returns: the index of the first value that is not finite after rounding; `n`: there is none.
template <typename T, typename Round, typename Widen>
size_t RoundAs(const double* from, size_t n, void* out, Round round, Widen widen) {
  uint64_t bits = 0;  // of zeros, and of NaN for values that are not finite: a reduction that compilers vectorise
  for (size_t i = 0; i < n; ++i) {
    const T value = round(from[i]);
    std::memcpy(static_cast<std::byte*>(out) + i * sizeof(T), &value, sizeof(T));
    bits |= std::bit_cast<uint64_t>(static_cast<double>(widen(value)) * 0.0);
  }
  if (bits << 1 == 0) return n;
  return static_cast<size_t>(
      std::find_if(from, from + n, [&](double value) { return !std::isfinite(widen(round(value))); }) - from);
}

size_t Round(DType dtype, const double* from, size_t n, void* out) {
  const auto same = [](auto value) { return value; };
  switch (dtype) {
    case DType::kFloat64:
      return RoundAs<double>(from, n, out, same, same);
    case DType::kFloat16:
      return RoundAs<uint16_t>(from, n, out, RoundToFloat16, WidenFloat16);
    case DType::kBFloat16:
      return RoundAs<uint16_t>(from, n, out, RoundToBFloat16, WidenBFloat16);
    default:
      return RoundAs<float>(
          from, n, out, [](double value) { return static_cast<float>(value); }, same);
  }
}

// Changes x, m and v, and may change d.
void StepBatch(const OptimizerSpec& spec, double rate, size_t n, double* __restrict x, double* __restrict m,
               double* __restrict v, double* __restrict d) {
  switch (spec.kind) {
    case OptimizerKind::kAssign:
      std::copy_n(d, n, x);
      return;
    case OptimizerKind::kSgd:
      for (size_t i = 0; i < n; ++i) x[i] = x[i] + rate * d[i];
      return;
    case OptimizerKind::kFedAvgM:
      for (size_t i = 0; i < n; ++i) {
        m[i] = spec.momentum * m[i] + d[i];
        x[i] = x[i] + rate * m[i];
      }
      return;
    case OptimizerKind::kFedAdagrad:
      for (size_t i = 0; i < n; ++i) v[i] = v[i] + d[i] * d[i];
      break;
    case OptimizerKind::kFedAdam:
      for (size_t i = 0; i < n; ++i) v[i] = spec.beta_2 * v[i] + (1.0 - spec.beta_2) * (d[i] * d[i]);
      break;
    case OptimizerKind::kFedYogi:
      for (size_t i = 0; i < n; ++i) {
        const double square = d[i] * d[i];
        const double sign = static_cast<double>(v[i] > square) - static_cast<double>(v[i] < square);
        v[i] = v[i] - (1.0 - spec.beta_2) * square * sign;
      }
      break;
  }
  if (spec.HasM()) {
    for (size_t i = 0; i < n; ++i) m[i] = d[i] = spec.beta_1 * m[i] + (1.0 - spec.beta_1) * d[i];
  }
  for (size_t i = 0; i < n; ++i) x[i] = x[i] + rate * d[i] / (std::sqrt(v[i]) + spec.tau);
}

}  // namespace

// TakeStep, compiled for each SIMD target. All of them give the same bits: each operation is rounded by itself.
size_t TakeSteps(const OptimizerSpec& spec, double rate, const StepRows& rows) {
  const DType state_dtype = rows.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const auto at = [](void* base, DType dtype, size_t i) -> void* {
    return base == nullptr ? nullptr : static_cast<std::byte*>(base) + i * SizeOf(dtype);
  };
  double x[kBatch], m[kBatch], v[kBatch], d[kBatch];
  size_t first = rows.num_values;
  for (size_t begin = 0; begin < rows.num_values; begin += kBatch) {
    const size_t n = std::min(kBatch, rows.num_values - begin);
    void* const to_x = at(rows.x, rows.dtype, begin);
    void* const to_m = at(rows.m, state_dtype, begin);
    void* const to_v = at(rows.v, state_dtype, begin);
    Widen(rows.dtype, to_x, n, x);
    Widen(rows.delta_dtype, static_cast<const std::byte*>(rows.delta) + begin * SizeOf(rows.delta_dtype), n, d);
    if (to_m != nullptr) Widen(state_dtype, to_m, n, m);
    if (to_v != nullptr) Widen(state_dtype, to_v, n, v);
    if (rows.delta_factor != 1.0) {
      for (size_t i = 0; i < n; ++i) d[i] = rows.delta_factor * d[i];
    }
    StepBatch(spec, rate, n, x, m, v, d);
    size_t bad = Round(rows.dtype, x, n, to_x);
    if (to_m != nullptr) bad = std::min(bad, Round(state_dtype, m, n, to_m));
    if (to_v != nullptr) bad = std::min(bad, Round(state_dtype, v, n, to_v));
    if (bad < n) first = std::min(first, begin + bad);
  }
  return first;
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg {
namespace {

HWY_EXPORT(TakeSteps);

// Returns: as TakeStep.
size_t Assign(const StepRows& rows) {
  if (rows.x == nullptr || rows.num_values == 0) return rows.num_values;
  if (rows.dtype == rows.delta_dtype) {
    std::memcpy(rows.x, rows.delta, rows.num_values * SizeOf(rows.dtype));
    return rows.num_values;
  }
  size_t first = rows.num_values;  // int64 to int32
  for (size_t i = rows.num_values; i-- > 0;) {
    int64_t value;
    std::memcpy(&value, static_cast<const std::byte*>(rows.delta) + i * sizeof(value), sizeof(value));
    const auto narrow = static_cast<int32_t>(value);
    if (narrow != value) first = i;
    std::memcpy(static_cast<std::byte*>(rows.x) + i * sizeof(narrow), &narrow, sizeof(narrow));
  }
  return first;
}

}  // namespace

double StepState::Rate(const OptimizerSpec& spec) const {
  if (!spec.bias_correction) return learning_rate_;
  return learning_rate_ * (std::sqrt(1.0 - power_2_) / (1.0 - power_1_));
}

size_t TakeStep(const OptimizerSpec& spec, double rate, const StepRows& rows) {
  const bool is_copy = !IsFloat(rows.dtype) || (rows.dtype == rows.delta_dtype && rows.delta_factor == 1.0);
  if (spec.kind == OptimizerKind::kAssign && is_copy) return Assign(rows);
  return HWY_DYNAMIC_DISPATCH(TakeSteps)(spec, rate, rows);
}

}  // namespace sparseagg
#endif  // HWY_ONCE
