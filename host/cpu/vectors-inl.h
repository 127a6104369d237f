// Vector types and loads that the kernels share, once a SIMD target.
#if defined(SPARSEAGG_HOST_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSEAGG_HOST_CPU_VECTORS_INL_H_
#undef SPARSEAGG_HOST_CPU_VECTORS_INL_H_
#else
#define SPARSEAGG_HOST_CPU_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "host/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Doubles = hn::ScalableTag<double>;
using Floats = hn::Rebind<float, Doubles>;     // half a vector: as many lanes as Doubles
using Halves = hn::Rebind<uint16_t, Doubles>;  // a quarter
using Words = hn::Rebind<uint32_t, Doubles>;
using Longs = hn::Rebind<uint64_t, Doubles>;
using SignedLongs = hn::Rebind<int64_t, Doubles>;

// float16 bits → float32. Shifted into place, the exponent is 112 too small; the product with 2^112 mends it and
// is exact for subnormals too. Infinities and NaNs get the largest exponent.
template <class V>
HWY_INLINE auto WidenHalf(Words dw, V bits16) {
  const Floats df;
  const auto bits = hn::PromoteTo(dw, bits16);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(dw, 0x7fffu)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(dw, 0x8000u)));
  const auto special = hn::Gt(magnitude, hn::Set(dw, 0x7bffu << 13));
  const auto scaled = hn::BitCast(dw, hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 0x1p112f)));
  const auto finite_or_special = hn::IfThenElse(special, hn::Or(magnitude, hn::Set(dw, 0x7f800000u)), scaled);
  return hn::BitCast(df, hn::Or(finite_or_special, sign));
}

// Loads n ≤ Lanes(d) elements from unaligned memory; the other lanes are zero.
template <class D>
HWY_INLINE auto LoadSome(D d, const void* from, size_t n) {
  using T = hn::TFromD<D>;
  if (n == hn::Lanes(d)) return hn::LoadU(d, static_cast<const T*>(from));
  HWY_ALIGN T buffer[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(T)] = {};
  __builtin_memcpy(buffer, from, n * sizeof(T));
  return hn::LoadU(d, buffer);
}

// Values [index, index + n) of dtype kDType, n ≤ Lanes(Doubles), widened exactly.
template <DType kDType>
HWY_INLINE hn::Vec<Doubles> LoadDoubles(const std::byte* values, size_t index, size_t n) {
  const Doubles d;
  const std::byte* from = values + index * SizeOf(kDType);
  if constexpr (kDType == DType::kFloat64) {
    return LoadSome(d, from, n);
  } else if constexpr (kDType == DType::kFloat16) {
    return hn::PromoteTo(d, WidenHalf(Words(), LoadSome(Halves(), from, n)));
  } else if constexpr (kDType == DType::kBFloat16) {
    const auto bits = hn::PromoteTo(Words(), LoadSome(Halves(), from, n));
    return hn::PromoteTo(d, hn::BitCast(Floats(), hn::ShiftLeft<16>(bits)));
  } else {
    return hn::PromoteTo(d, LoadSome(Floats(), from, n));
  }
}

// widened · weight + 0.0; the sum turns −0.0 into +0.0 and changes nothing else.
HWY_INLINE hn::Vec<Doubles> MakeTerms(hn::Vec<Doubles> widened, hn::Vec<Doubles> weight) {
  return hn::Add(hn::Mul(widened, weight), hn::Zero(Doubles()));
}

// rint(clamp(products, ±bound) · scale), ties to even.
struct Quantiser {
  Quantiser(double bound, double scale)
      : high(hn::Set(Doubles(), bound)), low(hn::Set(Doubles(), -bound)), factor(hn::Set(Doubles(), scale)) {}
  HWY_INLINE hn::Vec<SignedLongs> operator()(hn::Vec<Doubles> products) const {
    const auto clamped = hn::Min(hn::Max(products, low), high);
    return hn::ConvertTo(SignedLongs(), hn::Round(hn::Mul(clamped, factor)));
  }
  hn::Vec<Doubles> high;
  hn::Vec<Doubles> low;
  hn::Vec<Doubles> factor;
};

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#endif  // SPARSEAGG_HOST_CPU_VECTORS_INL_H_
