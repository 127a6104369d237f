// Vector types of eight-byte lanes and their loads and stores, once for each SIMD target.
#if defined(SPARSEAGG_HOST_BASE_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSEAGG_HOST_BASE_VECTORS_INL_H_
#undef SPARSEAGG_HOST_BASE_VECTORS_INL_H_
#else
#define SPARSEAGG_HOST_BASE_VECTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors with as many lanes as a full vector of doubles.
using Doubles = hn::ScalableTag<double>;
using Floats = hn::Rebind<float, Doubles>;     // half a vector
using Halves = hn::Rebind<uint16_t, Doubles>;  // a quarter of a vector
using Words = hn::Rebind<uint32_t, Doubles>;
using Longs = hn::Rebind<uint64_t, Doubles>;
using SignedLongs = hn::Rebind<int64_t, Doubles>;

// Widens float16 bits to float32, exactly. Shifted into place, the exponent is 112 too small; the product with 2^112
// corrects it and is exact for subnormals too. Infinities and NaNs get the largest exponent.
HWY_INLINE hn::Vec<Floats> WidenHalf(hn::Vec<Words> bits) {
  const Floats df;
  const Words dw;
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

// Stores the first n ≤ Lanes(d) lanes. Writes nothing behind them: that memory may belong to another thread.
template <class D, class V>
HWY_INLINE void StoreSome(V v, D d, size_t n, hn::TFromD<D>* to) {
  if (n == hn::Lanes(d)) return hn::StoreU(v, d, to);
  HWY_ALIGN hn::TFromD<D> buffer[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(hn::TFromD<D>)];
  hn::Store(v, d, buffer);
  __builtin_memcpy(to, buffer, n * sizeof(buffer[0]));
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::simd
HWY_AFTER_NAMESPACE();

#endif  // SPARSEAGG_HOST_BASE_VECTORS_INL_H_
