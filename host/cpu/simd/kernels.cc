#include "host/cpu/simd/kernels.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/simd/kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/cpu/simd/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

// Calls step(i, n) for elements [i, i + n): whole vectors, then the rest.
template <class Step>
HWY_INLINE void ForVectors(size_t count, Step step) {
  const size_t lanes = hn::Lanes(Doubles());
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) step(i, lanes);
  if (i < count) step(i, count - i);
}

// The same with a last vector that may reach beyond `count`, but not beyond `readable`.
template <class Step>
HWY_INLINE void ForReadable(size_t count, size_t readable, Step step) {
  const size_t whole = hwy::RoundUpTo(count, hn::Lanes(Doubles()));
  ForVectors(whole <= readable ? whole : count, step);
}

// Terms behind the last one are unspecified, and land in the slack.
void LoadFloats(const std::byte* values, DType dtype, size_t count, size_t readable, ValueScale scale, double* terms) {
  const Doubles d;
  const FloatTerms make_terms(scale);
  WithFloatType(dtype, [&](auto type) HWY_ATTR {
    ForReadable(count, readable, [&](size_t i, size_t n) HWY_ATTR {
      hn::StoreU(make_terms(LoadDoubles<decltype(type)::value>(values, i, n)), d, terms + i);
    });
  });
}

template <typename Key>
HWY_INLINE uint64_t CountUpToT(const Key* keys, uint64_t count, Key last) {
  const hn::ScalableTag<Key> d;
  const size_t lanes = hn::Lanes(d);
  const auto limit = hn::Set(d, last);
  uint64_t i = 0;
  for (; i + lanes < count; i += lanes) {
    const intptr_t first_above = hn::FindFirstTrue(d, hn::Gt(hn::LoadU(d, keys + i), limit));
    if (first_above >= 0) return i + static_cast<uint64_t>(first_above);
  }
  while (i < count && keys[i] <= last) ++i;
  return i;
}

uint64_t CountUpTo32(const uint32_t* keys, uint64_t count, uint32_t last) { return CountUpToT(keys, count, last); }
uint64_t CountUpTo64(const uint64_t* keys, uint64_t count, uint64_t last) { return CountUpToT(keys, count, last); }

void RoundToFloat32(const double* values, size_t count, float* out) {
  const Doubles d;
  ForVectors(count, [&](size_t i, size_t n)
                        HWY_ATTR { StoreSome(RoundToFloats(LoadSome(d, values + i, n)), Floats(), n, out + i); });
}

void Divide(double* values, size_t count, double divisor) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, divisor);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Div(hn::LoadU(d, values + i), by), d, values + i);
  for (; i < count; ++i) values[i] /= divisor;
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(LoadFloats);
HWY_EXPORT(CountUpTo32);
HWY_EXPORT(CountUpTo64);
HWY_EXPORT(RoundToFloat32);
HWY_EXPORT(Divide);

void LoadFloats(const std::byte* values, DType dtype, size_t count, size_t readable, ValueScale scale, double* terms) {
  HWY_DYNAMIC_DISPATCH(LoadFloats)(values, dtype, count, readable, scale, terms);
}
uint64_t CountUpTo(const uint32_t* keys, uint64_t count, uint32_t last) {
  return HWY_DYNAMIC_DISPATCH(CountUpTo32)(keys, count, last);
}
uint64_t CountUpTo(const uint64_t* keys, uint64_t count, uint64_t last) {
  return HWY_DYNAMIC_DISPATCH(CountUpTo64)(keys, count, last);
}
void RoundToFloat32(const double* values, size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(RoundToFloat32)(values, count, out);
}
void Divide(double* values, size_t count, double divisor) { HWY_DYNAMIC_DISPATCH(Divide)(values, count, divisor); }

std::vector<std::string> SimdTargets() {
  // ForceSimdTarget calls this before it restricts the targets, so the list is complete.
  static const auto* const names = [] {
    auto* all = new std::vector<std::string>;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) all->emplace_back(hwy::TargetName(target));
    return all;
  }();
  return *names;
}

std::string CurrentSimdTarget() { return hwy::TargetName(hwy::SupportedAndGeneratedTargets().front()); }

absl::Status ForceSimdTarget(const std::string& name) {
  const std::vector<std::string> names = SimdTargets();
  if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no SIMD target '", name, "' on this machine; it has ", absl::StrJoin(names, ", ")));
  }
  hwy::SetSupportedTargetsForTest(0);
  if (!name.empty()) {
    const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
    hwy::SetSupportedTargetsForTest(
        *std::find_if(targets.begin(), targets.end(), [&](int64_t target) { return name == hwy::TargetName(target); }));
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return absl::OkStatus();
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
