// Kernels of binned sums (host/base/binned.h).
#include <cstddef>
#include <cstdint>

#include "host/base/binned.h"
#include "host/cpu/simd/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/simd/binned_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/cpu/simd/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

using Bytes = hn::Rebind<uint8_t, Doubles>;

// A vector of binned sums.
//
// A digit comes from one addition: x + 1.5·2^52·unit rounds x to a multiple of the unit, ties to even, and the bits of
// this sum count the units. The constant has no exponent for bins above kMaxBin. Terms there, NaN and infinities, and
// sums that had one, go through BinnedSum, lane by lane.
template <class Sum>
class BinnedLanes {
 public:
  static constexpr int kBins = Sum::kBins;
  static constexpr int kBits = Sum::kBits;
  static constexpr uint32_t kMaxBin = (2046 - 1) / kBits;
  static_assert(kMaxBin * kBits + 1 <= 2046 && (kMaxBin + 1) * kBits - 52 <= 2046);

  HWY_INLINE BinnedLanes(const BinnedColumns& sums, size_t at) {
    for (int k = 0; k < kBins; ++k) digits_[k] = hn::LoadU(SignedLongs(), sums.digits[k] + at);
    SetTop(hn::PromoteTo(Words(), hn::LoadU(Bytes(), sums.tops + at)));
  }

  HWY_INLINE void Store(const BinnedColumns& sums, size_t at) const {
    for (int k = 0; k < kBins; ++k) hn::StoreU(digits_[k], SignedLongs(), sums.digits[k] + at);
    hn::StoreU(hn::TruncateTo(Bytes(), hn::PromoteTo(Longs(), top_)), Bytes(), sums.tops + at);
  }

  HWY_INLINE void Add(hn::Vec<Doubles> terms) {
    if (HWY_UNLIKELY(!hn::AllTrue(Doubles(), hn::Lt(hn::Abs(terms), limit_)))) {
      // A copy, so that `this` stays in registers.
      BinnedLanes lanes = *this;
      const auto same = terms;
      lanes.AddAnyBin(&same);
      *this = lanes;
    } else {
      AddBelowLimit(terms);
    }
  }

 private:
  HWY_INLINE void AddBelowLimit(hn::Vec<Doubles> terms) {
    const SignedLongs di;
    auto rest = terms;
    for (int k = 0; k < kBins; ++k) {
      const auto rounded = hn::Add(rest, round_[k]);
      digits_[k] = hn::Add(digits_[k], hn::Sub(hn::BitCast(di, rounded), hn::BitCast(di, round_[k])));
      rest = hn::Sub(rest, hn::Sub(rounded, round_[k]));
    }
  }

  HWY_NOINLINE void AddAnyBin(const hn::Vec<Doubles>* terms) {
    if (Raise(*terms)) {
      AddBelowLimit(*terms);
    } else {
      AddLanes(*terms);
    }
  }

  // (e + 52) / kBits of an exponent e, as (e + 52) · kReciprocal / 2^16.
  static constexpr uint32_t kReciprocal = (1 << 16) / kBits + 1;
  static constexpr bool IsReciprocal() {
    for (uint32_t e = 0; e < 2048; ++e) {
      if ((e + 52) * kReciprocal >> 16 != (e + 52) / kBits) return false;
    }
    return true;
  }
  static_assert(IsReciprocal());

  HWY_INLINE void SetTop(hn::Vec<Words> top) {
    const Doubles d;
    const Words dw;
    const Longs dl;
    top_ = top;
    const auto exponent = hn::Add(hn::Mul(top, hn::Set(dw, kBits)), hn::Set(dw, 1));
    const auto half = hn::Set(dl, uint64_t{1} << 51);
    auto bits = hn::ShiftLeft<52>(hn::PromoteTo(dl, exponent));
    for (int k = 0; k < kBins; ++k) {
      round_[k] = hn::BitCast(d, hn::Or(bits, half));
      bits = hn::Sub(bits, hn::Set(dl, uint64_t{kBits} << 52));
    }
    // 2^(kBits − 1) units. 0, so that no term is below: sums for BinnedSum.
    const auto limit = hn::Sub(hn::Add(exponent, hn::Set(dw, kBits)), hn::Set(dw, 53));
    const auto fast = hn::IfThenZeroElse(hn::Gt(top, hn::Set(dw, kMaxBin)), limit);
    limit_ = hn::BitCast(d, hn::ShiftLeft<52>(hn::PromoteTo(dl, fast)));
  }

  // Raises the tops to the bins of the terms. Returns: false, and changes nothing, if a lane needs BinnedSum.
  HWY_INLINE bool Raise(hn::Vec<Doubles> terms) {
    const Words dw;
    const SignedLongs di;
    const auto shifted = hn::ShiftRight<52>(hn::BitCast(Longs(), hn::Abs(terms)));
    const auto exponent = hn::TruncateTo(dw, shifted);
    const auto bin = hn::ShiftRight<16>(hn::Mul(hn::Add(exponent, hn::Set(dw, 52)), hn::Set(dw, kReciprocal)));
    const auto raised = hn::Max(top_, bin);
    if (!hn::AllFalse(dw, hn::Gt(raised, hn::Set(dw, kMaxBin)))) return false;
    const auto by = hn::BitCast(di, hn::PromoteTo(Longs(), hn::Sub(raised, top_)));
    for (int step = 0; step < kBins; ++step) {
      const auto shifts = hn::Gt(by, hn::Set(di, step));
      for (int k = kBins - 1; k > 0; --k) digits_[k] = hn::IfThenElse(shifts, digits_[k - 1], digits_[k]);
      digits_[0] = hn::IfThenZeroElse(shifts, digits_[0]);
    }
    SetTop(raised);
    return true;
  }

  HWY_INLINE void AddLanes(hn::Vec<Doubles> terms) {
    constexpr size_t kMaxLanes = HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(double);
    HWY_ALIGN double term[kMaxLanes];
    HWY_ALIGN int64_t digits[kBins][kMaxLanes];
    HWY_ALIGN uint32_t tops[kMaxLanes];
    hn::Store(terms, Doubles(), term);
    for (int k = 0; k < kBins; ++k) hn::Store(digits_[k], SignedLongs(), digits[k]);
    hn::StoreU(top_, Words(), tops);
    for (size_t i = 0; i < hn::Lanes(Doubles()); ++i) {
      Sum sum;
      for (int k = 0; k < kBins; ++k) sum.digits[k] = digits[k][i];
      sum.top = static_cast<uint8_t>(tops[i]);
      sum.Add(term[i]);
      for (int k = 0; k < kBins; ++k) digits[k][i] = sum.digits[k];
      tops[i] = sum.top;
    }
    for (int k = 0; k < kBins; ++k) digits_[k] = hn::Load(SignedLongs(), digits[k]);
    SetTop(hn::LoadU(Words(), tops));
  }

  hn::Vec<SignedLongs> digits_[kBins];
  hn::Vec<Words> top_;
  hn::Vec<Doubles> round_[kBins];  // of each bin: 1.5·2^52 units
  hn::Vec<Doubles> limit_;
};

template <DType kDType, class Sum>
HWY_INLINE void AddBinnedOf(const BinnedColumns& sums, const BinnedSource* sources, size_t num_sources, size_t count) {
  const size_t lanes = hn::Lanes(Doubles());
  for (size_t i = 0; i < count; i += lanes) {
    const size_t n = HWY_MIN(lanes, count - i);
    BinnedLanes<Sum> bins(sums, i);
    for (size_t s = 0; s < num_sources; ++s) {
      bins.Add(Scaler(sources[s].scale)(LoadDoubles<kDType>(sources[s].values, i, n)));
    }
    bins.Store(sums, i);
  }
}

void AddBinned(const BinnedColumns& sums, DType dtype, const BinnedSource* sources, size_t num_sources, size_t count) {
  switch (dtype) {
    case DType::kFloat64:
      return AddBinnedOf<DType::kFloat64, WideBinnedSum>(sums, sources, num_sources, count);
    case DType::kFloat16:
      return AddBinnedOf<DType::kFloat16, NarrowBinnedSum>(sums, sources, num_sources, count);
    case DType::kBFloat16:
      return AddBinnedOf<DType::kBFloat16, NarrowBinnedSum>(sums, sources, num_sources, count);
    default:
      return AddBinnedOf<DType::kFloat32, NarrowBinnedSum>(sums, sources, num_sources, count);
  }
}

// As NarrowBinnedSum::Value. The lower digits carry into the upper ones. What is left of each then fits float64, so
// that only their sum is rounded.
// Returns: false, and writes nothing, if a lane needs BinnedSum.
HWY_INLINE bool NarrowValues(const BinnedColumns& sums, size_t at, size_t n, double* out) {
  constexpr int kBits = NarrowBinnedSum::kBits;
  const Doubles d;
  const SignedLongs di;
  const Words dw;
  const auto low = hn::LoadU(di, sums.digits[1] + at);
  const auto carry = hn::ShiftRight<kBits>(hn::Add(low, hn::Set(di, int64_t{1} << (kBits - 1))));
  const auto high = hn::Add(hn::LoadU(di, sums.digits[0] + at), carry);
  const auto top = hn::PromoteTo(dw, hn::LoadU(Bytes(), sums.tops + at));
  if (!hn::AllFalse(dw, hn::Gt(top, hn::Set(dw, BinnedLanes<NarrowBinnedSum>::kMaxBin)))) return false;
  if (!hn::AllTrue(di, hn::Lt(hn::Abs(high), hn::Set(di, int64_t{1} << 52)))) return false;
  const auto rest = hn::ConvertTo(d, hn::Sub(low, hn::ShiftLeft<kBits>(carry)));
  const auto units = hn::Add(hn::Mul(hn::ConvertTo(d, high), hn::Set(d, 0x1p44)), rest);
  // 2^((top − 1)·44 − 1074), as 2^-100 and the rest, which is a normal number.
  const auto exponent = hn::Add(hn::Mul(hn::Sub(top, hn::Set(dw, 1)), hn::Set(dw, kBits)), hn::Set(dw, 1023 - 974));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<52>(hn::PromoteTo(Longs(), exponent)));
  StoreSome(hn::Mul(hn::Mul(units, hn::Set(d, 0x1p-100)), scale), d, n, out + at);
  return true;
}

void NarrowBinnedValues(const BinnedColumns& sums, size_t count, double* out) {
  const size_t lanes = hn::Lanes(Doubles());
  for (size_t i = 0; i < count; i += lanes) {
    const size_t n = HWY_MIN(lanes, count - i);
    if (NarrowValues(sums, i, n, out)) continue;
    for (size_t j = i; j < i + n; ++j) out[j] = BinnedAt<NarrowBinnedSum>(sums, j).Value();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(AddBinned);
HWY_EXPORT(NarrowBinnedValues);

void AddBinned(const BinnedColumns& sums, DType dtype, const BinnedSource* sources, size_t num_sources, size_t count) {
  HWY_DYNAMIC_DISPATCH(AddBinned)(sums, dtype, sources, num_sources, count);
}

void BinnedValues(const BinnedColumns& sums, DType dtype, size_t count, double* out) {
  if (dtype != DType::kFloat64) return HWY_DYNAMIC_DISPATCH(NarrowBinnedValues)(sums, count, out);
  for (size_t i = 0; i < count; ++i) out[i] = BinnedAt<WideBinnedSum>(sums, i).Value();
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
