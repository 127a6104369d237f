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

// Adds sources to binned sums, a vector of sums at a time.
//
// A digit comes from one addition: x + 1.5·2^52·unit rounds x to a multiple of the unit, ties to even, and the bits of
// this sum count the units. So the bits of all terms are added, and those of the constants are subtracted once. The
// constants depend on the bins of a vector's tops. Neighbours mostly have the same bins, so the bins of the vector
// before are tried first, and the largest terms say afterwards whether they were right.
//
// The constant has no exponent for bins above kMaxBin. Terms there, NaN and infinities, and sums that had one, go
// through BinnedSum.
template <DType kDType, class Sum>
class BinnedFold {
 public:
  static constexpr int kBins = Sum::kBins;
  static constexpr int kBits = Sum::kBits;
  static constexpr uint32_t kMaxBin = (2046 - 1) / kBits;
  static_assert(kMaxBin * kBits + 1 <= 2046 && (kMaxBin + 1) * kBits - 52 <= 2046);

  HWY_INLINE BinnedFold(const BinnedColumns& sums, const BinnedSource* sources, size_t num_sources)
      : sums_(sums), sources_(sources), num_sources_(num_sources) {
    for (size_t s = 0; s < num_sources; ++s) has_factors_ = has_factors_ || sources[s].scale.factor != 1.0;
    SetTop(hn::Set(Words(), Sum().top));
  }

  // Adds values [at, at + n) of the sources, n ≤ Lanes(Doubles).
  HWY_INLINE void Add(size_t at, size_t n) {
    const Words dw;
    const auto top = LoadTops(at);
    hn::Vec<SignedLongs> digits[kBins];
    auto floor = hn::Zero(SignedLongs());
    bool is_new = false;
    if (HWY_LIKELY(hn::AllTrue(dw, hn::Eq(top, top_)))) {
      LoadDigits(at, digits);
    } else if (hn::AllTrue(dw, hn::Lt(hn::Add(top, hn::Set(dw, kBins - 1)), top_))) {
      // The digits are below all bins of top_. The sums have these bins if the terms do.
      for (auto& digit : digits) digit = hn::Zero(SignedLongs());
      floor = floor_;
      is_new = true;
    } else {
      SetTop(top);
      LoadDigits(at, digits);
    }
    const auto largest = AddTerms(at, n, digits);
    const auto is_right = hn::AndNot(hn::Lt(largest, floor), hn::Lt(largest, limit_));
    if (HWY_UNLIKELY(!hn::AllTrue(SignedLongs(), is_right))) {
      const auto same = largest;  // a copy, so that `largest` stays in a register
      return AddAnyBin(at, n, &same);
    }
    StoreDigits(at, digits);
    if (is_new) StoreTops(at);
  }

 private:
  HWY_INLINE hn::Vec<Words> LoadTops(size_t at) const {
    return hn::PromoteTo(Words(), hn::LoadU(Bytes(), sums_.tops + at));
  }
  HWY_INLINE void StoreTops(size_t at) const {
    hn::StoreU(hn::TruncateTo(Bytes(), hn::PromoteTo(Longs(), top_)), Bytes(), sums_.tops + at);
  }
  HWY_INLINE void LoadDigits(size_t at, hn::Vec<SignedLongs>* digits) const {
    for (int k = 0; k < kBins; ++k) digits[k] = hn::LoadU(SignedLongs(), sums_.digits[k] + at);
  }
  HWY_INLINE void StoreDigits(size_t at, const hn::Vec<SignedLongs>* digits) const {
    for (int k = 0; k < kBins; ++k) hn::StoreU(digits[k], SignedLongs(), sums_.digits[k] + at);
  }

  // Adds the terms' digits in the bins of top_. Returns: the bits of the largest |term|, or of any that is no number.
  HWY_INLINE hn::Vec<SignedLongs> AddTerms(size_t at, size_t n, hn::Vec<SignedLongs>* digits) const {
    const SignedLongs di;
    auto largest = hn::Zero(di);
    for (int k = 0; k < kBins; ++k) digits[k] = hn::Sub(digits[k], round_bits_[k]);
    for (size_t s = 0; s < num_sources_; ++s) {
      const Scaler scaler(sources_[s].scale);
      auto rest = LoadDoubles<kDType>(sources_[s].values, at, n);
      if (has_factors_) rest = hn::Mul(rest, scaler.factor);  // by 1 it would cost a tenth of the time
      rest = hn::Mul(rest, scaler.weight);
      largest = hn::Max(largest, hn::BitCast(di, hn::Abs(rest)));
      for (int k = 0; k < kBins; ++k) {
        const auto rounded = hn::Add(rest, round_[k]);
        digits[k] = hn::Add(digits[k], hn::BitCast(di, rounded));
        rest = hn::Sub(rest, hn::Sub(rounded, round_[k]));
      }
    }
    return largest;
  }

  // Add, whatever the bins of the sums and terms. `largest`: as of AddTerms.
  HWY_NOINLINE void AddAnyBin(size_t at, size_t n, const hn::Vec<SignedLongs>* largest) {
    SetTop(LoadTops(at));
    hn::Vec<SignedLongs> digits[kBins];
    LoadDigits(at, digits);
    if (Raise(*largest, digits)) {
      AddTerms(at, n, digits);
      StoreDigits(at, digits);
      return StoreTops(at);
    }
    for (size_t i = at; i < at + n; ++i) {
      Sum sum = BinnedAt<Sum>(sums_, i);
      for (size_t s = 0; s < num_sources_; ++s) {
        sum.Add(hn::GetLane(Scaler(sources_[s].scale)(LoadDoubles<kDType>(sources_[s].values, i, 1))));
      }
      SetBinned(sum, sums_, i);
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
    const SignedLongs di;
    top_ = top;
    const auto exponent = hn::Add(hn::Mul(top, hn::Set(dw, kBits)), hn::Set(dw, 1));
    const auto times = hn::Set(dw, static_cast<uint32_t>(num_sources_));
    for (int k = 0; k < kBins; ++k) {
      const auto of_bin = hn::Sub(exponent, hn::Set(dw, static_cast<uint32_t>(k * kBits)));
      const auto half = uint64_t{1} << 51;
      round_[k] = hn::BitCast(d, hn::Or(hn::ShiftLeft<52>(hn::PromoteTo(dl, of_bin)), hn::Set(dl, half)));
      round_bits_[k] = hn::BitCast(
          di, hn::Add(hn::ShiftLeft<52>(hn::PromoteTo(dl, hn::Mul(of_bin, times))), hn::Set(dl, half * num_sources_)));
    }
    // The border of the bin above, 2^(kBits − 1) units. 0, so that no term is below: sums for BinnedSum.
    const auto border = hn::Sub(hn::Add(exponent, hn::Set(dw, kBits)), hn::Set(dw, 53));
    const auto limit = hn::IfThenZeroElse(hn::Gt(top, hn::Set(dw, kMaxBin)), border);
    limit_ = hn::BitCast(di, hn::ShiftLeft<52>(hn::PromoteTo(dl, limit)));
    floor_ = hn::BitCast(di, hn::ShiftLeft<52>(hn::PromoteTo(dl, hn::Sub(border, hn::Set(dw, kBits)))));
  }

  // Raises sums in the bins of top_ to the bins of the terms. Returns: false, and changes nothing, if a lane needs
  // BinnedSum.
  HWY_INLINE bool Raise(hn::Vec<SignedLongs> largest, hn::Vec<SignedLongs>* digits) {
    const Words dw;
    const SignedLongs di;
    const auto exponent = hn::TruncateTo(dw, hn::ShiftRight<52>(hn::BitCast(Longs(), largest)));
    const auto bin = hn::ShiftRight<16>(hn::Mul(hn::Add(exponent, hn::Set(dw, 52)), hn::Set(dw, kReciprocal)));
    const auto raised = hn::Max(top_, bin);
    if (!hn::AllFalse(dw, hn::Gt(raised, hn::Set(dw, kMaxBin)))) return false;
    const auto by = hn::BitCast(di, hn::PromoteTo(Longs(), hn::Sub(raised, top_)));
    for (int step = 0; step < kBins; ++step) {
      const auto shifts = hn::Gt(by, hn::Set(di, step));
      for (int k = kBins - 1; k > 0; --k) digits[k] = hn::IfThenElse(shifts, digits[k - 1], digits[k]);
      digits[0] = hn::IfThenZeroElse(shifts, digits[0]);
    }
    SetTop(raised);
    return true;
  }

  const BinnedColumns& sums_;
  const BinnedSource* sources_;
  size_t num_sources_;
  bool has_factors_ = false;
  hn::Vec<Words> top_;                      // of the vector before
  hn::Vec<Doubles> round_[kBins];           // of each of its bins: 1.5·2^52 units
  hn::Vec<SignedLongs> round_bits_[kBins];  // the bits of round_, as often as there are sources
  hn::Vec<SignedLongs> limit_;              // the bits of the first |term| above the bins
  hn::Vec<SignedLongs> floor_;              // the bits of the lowest |term| in the highest bin
};

void AddBinned(const BinnedColumns& sums, DType dtype, const BinnedSource* sources, size_t num_sources, size_t count) {
  WithFloatType(dtype, [&](auto type) HWY_ATTR {
    constexpr DType kDType = decltype(type)::value;
    BinnedFold<kDType, std::conditional_t<kDType == DType::kFloat64, WideBinnedSum, NarrowBinnedSum>> fold(
        sums, sources, num_sources);
    const size_t lanes = hn::Lanes(Doubles());
    size_t i = 0;
    for (; i + lanes <= count; i += lanes) fold.Add(i, lanes);
    if (i < count) fold.Add(i, count - i);
  });
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
  if (!hn::AllFalse(dw, hn::Gt(top, hn::Set(dw, BinnedFold<DType::kFloat32, NarrowBinnedSum>::kMaxBin)))) return false;
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
