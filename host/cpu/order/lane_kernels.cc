#include "host/cpu/order/lane_kernels.h"

#include <limits>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/cpu/order/lane_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes it again for each target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// As many lanes as both a vector and a group have.
template <typename T>
using Tag = hn::CappedTag<T, kGroupLanes>;
using Doubles = Tag<double>;

template <class D>
HWY_INLINE hn::Vec<D> LoadValues(D d, const hn::TFromD<D>* from) {
  return hn::Add(hn::LoadU(d, from), hn::Zero(d));  // −0 + 0 = +0
}

// Integers are never NaN. Not Ne(v, v), which Highway 1.0.3 makes an ordered comparison.
template <class D>
HWY_INLINE hn::Mask<D> IsNan(D, hn::Vec<D> v) {
  if constexpr (std::is_same_v<hn::TFromD<D>, int64_t>) {
    return hn::Ne(v, v);
  } else {
    return hn::IsNaN(v);
  }
}

// 1 where the mask is set, else 0.
template <class D>
HWY_INLINE hn::Vec<D> OneIf(D d, hn::Mask<D> mask) {
  return hn::IfThenElseZero(mask, hn::Set(d, hn::TFromD<D>{1}));
}

// The values of as many lanes as a vector has, in ascending order: value p of lane l is at p · Lanes(d) + l.
template <class D>
struct SortedLanes {
  using T = hn::TFromD<D>;
  static constexpr size_t kLanes = HWY_MIN(hn::MaxLanes(D()), kGroupLanes);

  // Sorts the lanes from `first_lane` on.
  HWY_INLINE void Sort(const Planes<T>& planes, size_t first_lane) {
    const D d;
    const size_t lanes = hn::Lanes(d);
    nan = IsNan(d, hn::Zero(d));  // no lane
    for (size_t p = 0; p < planes.count; ++p) {
      const auto v = LoadValues(d, planes.values + p * planes.step + first_lane);
      nan = hn::Or(nan, IsNan(d, v));
      hn::Store(v, d, values + p * lanes);
    }
    for (const Comparator comparator : SortingNetwork(planes.count)) {
      T* const low = values + comparator.low * lanes;
      T* const high = values + comparator.high * lanes;
      const auto a = hn::Load(d, low);
      const auto b = hn::Load(d, high);
      hn::Store(hn::Min(a, b), d, low);
      hn::Store(hn::Max(a, b), d, high);
    }
  }

  // Returns: the vote at `rank`, among the values and planes.zeros zeros.
  HWY_INLINE hn::Vec<D> At(const Planes<T>& planes, uint64_t rank) const {
    const D d;
    const size_t lanes = hn::Lanes(d);
    if (planes.zeros == 0) return hn::Load(d, values + rank * lanes);
    auto found = hn::Zero(d);  // negative values keep their rank, positive ones follow the zeros
    if (rank < planes.count) found = hn::Min(found, hn::Load(d, values + rank * lanes));
    if (rank >= planes.zeros) {
      const auto behind = hn::Max(hn::Zero(d), hn::Load(d, values + (rank - planes.zeros) * lanes));
      found = hn::IfThenElse(hn::Lt(found, hn::Zero(d)), found, behind);
    }
    return found;
  }

  hn::Mask<D> nan;
  HWY_ALIGN T values[kMaxNetwork * kLanes];
};

template <typename T>
HWY_INLINE void PickRanksOf(const Planes<T>& planes, uint64_t low, uint64_t high, T* at_low, T* at_high) {
  const Tag<T> d;
  SortedLanes<Tag<T>> sorted;
  for (size_t lane = 0; lane < kGroupLanes; lane += hn::Lanes(d)) {
    sorted.Sort(planes, lane);
    auto a = sorted.At(planes, low);
    auto b = sorted.At(planes, high);
    if constexpr (!std::is_same_v<T, int64_t>) {
      const auto nan = hn::Set(d, std::numeric_limits<T>::quiet_NaN());
      a = hn::IfThenElse(sorted.nan, nan, a);
      b = hn::IfThenElse(sorted.nan, nan, b);
    }
    hn::StoreU(a, d, at_low + lane);
    hn::StoreU(b, d, at_high + lane);
  }
}

// Thresholds of a trimmed mean in each lane: the lowest and the highest vote that stay, and how many values that equal
// one of them go.
template <typename T>
struct Thresholds {
  HWY_ALIGN T low[kGroupLanes];
  HWY_ALIGN T high[kGroupLanes];
  HWY_ALIGN T drop_low[kGroupLanes];   // the first of those that equal `low`
  HWY_ALIGN T keep_high[kGroupLanes];  // those that equal `high`, up to here
  HWY_ALIGN T nan[kGroupLanes];        // NaN if a value is NaN, else 0
};

template <typename T>
HWY_INLINE void FindThresholds(const Planes<T>& planes, uint64_t trim, Thresholds<T>& out) {
  const Tag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  // The number of values to drop, by whether the zeros are among the votes dropped before.
  const auto dropped = hn::Set(d, static_cast<T>(trim));
  const auto dropped_behind_zeros = hn::Set(d, static_cast<T>(static_cast<int64_t>(trim - planes.zeros)));
  SortedLanes<Tag<T>> sorted;
  for (size_t lane = 0; lane < kGroupLanes; lane += lanes) {
    sorted.Sort(planes, lane);
    const auto low = sorted.At(planes, trim);
    const auto high = sorted.At(planes, planes.votes() - 1 - trim);
    auto drop_low = hn::IfThenElse(hn::Gt(low, zero), dropped_behind_zeros, dropped);
    auto drop_high = hn::IfThenElse(hn::Lt(high, zero), dropped_behind_zeros, dropped);
    auto equal_high = zero;
    for (size_t p = 0; p < planes.count; ++p) {
      const auto v = hn::Load(d, sorted.values + p * lanes);
      drop_low = hn::Sub(drop_low, OneIf(d, hn::Lt(v, low)));
      drop_high = hn::Sub(drop_high, OneIf(d, hn::Gt(v, high)));
      equal_high = hn::Add(equal_high, OneIf(d, hn::Eq(v, high)));
    }
    auto keep_high = hn::Sub(equal_high, drop_high);
    if (planes.zeros > 0) {  // zeros add nothing: it is all the same which of them stay
      drop_low = hn::IfThenElse(hn::Eq(low, zero), zero, drop_low);
      keep_high = hn::IfThenElse(hn::Eq(high, zero), equal_high, keep_high);
    }
    hn::Store(low, d, out.low + lane);
    hn::Store(high, d, out.high + lane);
    hn::Store(drop_low, d, out.drop_low + lane);
    hn::Store(keep_high, d, out.keep_high + lane);
    const auto nan = hn::Set(d, std::numeric_limits<T>::quiet_NaN());
    hn::Store(hn::IfThenElseZero(sorted.nan, nan), d, out.nan + lane);
  }
}

// Adds weight · value and the weight of one value of each lane. Where `stays` is 0, so is `value`.
HWY_INLINE void AddWeighted(const PlaneWeights& weights, size_t p, size_t lane, hn::Vec<Doubles> value,
                            hn::Vec<Doubles> stays, hn::Vec<Doubles>& sum, hn::Vec<Doubles>& divisor) {
  const Doubles d;
  const double* const from = weights.weights + p * weights.step;
  const auto weight = weights.lane_step == 0 ? hn::Set(d, *from) : hn::LoadU(d, from + lane);
  sum = hn::Add(sum, hn::Mul(weight, value));
  divisor = hn::Add(divisor, hn::Mul(weight, stays));
}

// Adds the values that stay. kWeighted: times their weights, which are added, too.
template <typename T, bool kWeighted>
HWY_INLINE void SumBetween(const Planes<T>& planes, const PlaneWeights& weights, const Thresholds<T>& thresholds,
                           double* sums, double* divisors) {
  const Doubles dd;
  const hn::Rebind<T, Doubles> d;
  const auto one = hn::Set(d, T{1});
  for (size_t lane = 0; lane < kGroupLanes; lane += hn::Lanes(dd)) {
    const auto low = hn::Load(d, thresholds.low + lane);
    const auto high = hn::Load(d, thresholds.high + lane);
    const auto drop_low = hn::Load(d, thresholds.drop_low + lane);
    const auto keep_high = hn::Load(d, thresholds.keep_high + lane);
    const auto nan = hn::Load(d, thresholds.nan + lane);
    const auto no_nan = hn::Eq(nan, nan);
    auto num_low = hn::Zero(d);  // values so far that equal the threshold
    auto num_high = hn::Zero(d);
    auto sum = hn::Zero(dd);
    auto divisor = hn::Zero(dd);
    for (size_t p = 0; p < planes.count; ++p) {
      const auto v = LoadValues(d, planes.values + p * planes.step + lane);
      const auto is_low = hn::Eq(v, low);
      const auto is_high = hn::Eq(v, high);
      const auto goes_low = hn::Or(hn::Lt(v, low), hn::And(is_low, hn::Lt(num_low, drop_low)));
      const auto goes_high = hn::Or(hn::Gt(v, high), hn::And(is_high, hn::Ge(num_high, keep_high)));
      num_low = hn::Add(num_low, hn::IfThenElseZero(is_low, one));
      num_high = hn::Add(num_high, hn::IfThenElseZero(is_high, one));
      const auto goes = hn::And(hn::Or(goes_low, goes_high), no_nan);
      const auto value = hn::IfThenZeroElse(goes, v);
      const auto stays = hn::IfThenZeroElse(goes, one);
      if constexpr (!kWeighted) {
        if constexpr (std::is_same_v<T, double>) {
          sum = hn::Add(sum, value);
        } else {
          sum = hn::Add(sum, hn::PromoteTo(dd, value));
        }
      } else if constexpr (std::is_same_v<T, double>) {
        AddWeighted(weights, p, lane, value, stays, sum, divisor);
      } else {
        AddWeighted(weights, p, lane, hn::PromoteTo(dd, value), hn::PromoteTo(dd, stays), sum, divisor);
      }
    }
    hn::StoreU(sum, dd, sums + lane);
    if constexpr (kWeighted) hn::StoreU(divisor, dd, divisors + lane);
  }
  for (size_t lane = 0; lane < kGroupLanes; ++lane) {
    if (thresholds.nan[lane] != thresholds.nan[lane]) sums[lane] = std::numeric_limits<double>::quiet_NaN();
  }
}

template <typename T>
HWY_INLINE void TrimmedSumsOf(const Planes<T>& planes, const PlaneWeights& weights, uint64_t trim, double* sums,
                              double* divisors) {
  Thresholds<T> thresholds;
  FindThresholds(planes, trim, thresholds);
  if (weights.weights != nullptr) return SumBetween<T, true>(planes, weights, thresholds, sums, divisors);
  SumBetween<T, false>(planes, weights, thresholds, sums, divisors);
  const auto divisor = static_cast<double>(planes.votes() - 2 * trim);
  for (size_t lane = 0; lane < kGroupLanes; ++lane) divisors[lane] = divisor;
}

void PickRanksF32(const Planes<float>& planes, uint64_t low, uint64_t high, float* at_low, float* at_high) {
  PickRanksOf(planes, low, high, at_low, at_high);
}
void PickRanksF64(const Planes<double>& planes, uint64_t low, uint64_t high, double* at_low, double* at_high) {
  PickRanksOf(planes, low, high, at_low, at_high);
}
void PickRanksI64(const Planes<int64_t>& planes, uint64_t low, uint64_t high, int64_t* at_low, int64_t* at_high) {
  PickRanksOf(planes, low, high, at_low, at_high);
}
void TrimmedSumsF32(const Planes<float>& planes, const PlaneWeights& weights, uint64_t trim, double* sums,
                    double* divisors) {
  TrimmedSumsOf(planes, weights, trim, sums, divisors);
}
void TrimmedSumsF64(const Planes<double>& planes, const PlaneWeights& weights, uint64_t trim, double* sums,
                    double* divisors) {
  TrimmedSumsOf(planes, weights, trim, sums, divisors);
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::cpu {

HWY_EXPORT(PickRanksF32);
HWY_EXPORT(PickRanksF64);
HWY_EXPORT(PickRanksI64);
HWY_EXPORT(TrimmedSumsF32);
HWY_EXPORT(TrimmedSumsF64);

template <>
void PickRanks(const Planes<float>& planes, uint64_t low, uint64_t high, float* at_low, float* at_high) {
  HWY_DYNAMIC_DISPATCH(PickRanksF32)(planes, low, high, at_low, at_high);
}
template <>
void PickRanks(const Planes<double>& planes, uint64_t low, uint64_t high, double* at_low, double* at_high) {
  HWY_DYNAMIC_DISPATCH(PickRanksF64)(planes, low, high, at_low, at_high);
}
template <>
void PickRanks(const Planes<int64_t>& planes, uint64_t low, uint64_t high, int64_t* at_low, int64_t* at_high) {
  HWY_DYNAMIC_DISPATCH(PickRanksI64)(planes, low, high, at_low, at_high);
}
template <>
void TrimmedSums(const Planes<float>& planes, const PlaneWeights& weights, uint64_t trim, double* sums,
                 double* divisors) {
  HWY_DYNAMIC_DISPATCH(TrimmedSumsF32)(planes, weights, trim, sums, divisors);
}
template <>
void TrimmedSums(const Planes<double>& planes, const PlaneWeights& weights, uint64_t trim, double* sums,
                 double* divisors) {
  HWY_DYNAMIC_DISPATCH(TrimmedSumsF64)(planes, weights, trim, sums, divisors);
}

}  // namespace sparseagg::cpu
#endif  // HWY_ONCE
