#include "host/cpu/order/lane_kernels.h"

#include <array>
#include <limits>
#include <type_traits>
#include <utility>

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

// The comparators that sort kRun values.
template <size_t kRun>
constexpr auto MakeRunNetwork() {
  constexpr size_t kSize = [] {
    size_t size = 0;
    ForSortingNetwork(kRun, [&size](Comparator, size_t) { ++size; });
    return size;
  }();
  std::array<Comparator, kSize> network = {};
  size_t i = 0;
  ForSortingNetwork(kRun, [&](Comparator comparator, size_t) { network[i++] = comparator; });
  return network;
}

template <size_t kRun>
struct RunNetwork {
  static constexpr auto kComparators = MakeRunNetwork<kRun>();
};

// Sorts the values from[0], from[lanes], …, kRun of them in each lane. All comparators are unrolled, so that the values
// stay in registers.
template <size_t kRun, class D, size_t... kIndex>
HWY_INLINE void SortRun(D d, hn::TFromD<D>* HWY_RESTRICT from, std::index_sequence<kIndex...> /*comparators*/) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> v[kRun];
  for (size_t p = 0; p < kRun; ++p) v[p] = hn::Load(d, from + p * lanes);
  const auto compare = [&v](Comparator comparator) HWY_ATTR {
    const auto low = hn::Min(v[comparator.low], v[comparator.high]);
    v[comparator.high] = hn::Max(v[comparator.low], v[comparator.high]);
    v[comparator.low] = low;
  };
  (compare(RunNetwork<kRun>::kComparators[kIndex]), ...);
  for (size_t p = 0; p < kRun; ++p) hn::Store(v[p], d, from + p * lanes);
}

// Sorts each whole run of kRun of `count` values.
template <size_t kRun, class D>
HWY_NOINLINE void SortRuns(D d, size_t count, hn::TFromD<D>* HWY_RESTRICT values) {
  constexpr auto kIndexes = std::make_index_sequence<RunNetwork<kRun>::kComparators.size()>();
  for (size_t p = 0; p + kRun <= count; p += kRun) SortRun<kRun>(d, values + p * hn::Lanes(d), kIndexes);
}

// The values of as many lanes as a vector has, in ascending order as far as the network sorts: value p of lane l is at
// p · Lanes(d) + l.
template <class D>
struct SortedLanes {
  using T = hn::TFromD<D>;
  static constexpr size_t kLanes = HWY_MIN(hn::MaxLanes(D()), kGroupLanes);

  // GCC would make it without the target's instructions.
  HWY_INLINE SortedLanes() {}  // NOLINT(modernize-use-equals-default)

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
    if (RunOf(planes.count) == 16) {
      SortRuns<16>(d, planes.count, values);
    } else if (RunOf(planes.count) == 8) {
      SortRuns<8>(d, planes.count, values);
    }
    for (const Comparator comparator : planes.network) {
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
  bool are_strict;  // in no lane does a value that goes equal one that stays, and none is NaN
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
  out.are_strict = true;
  for (size_t lane = 0; lane < kGroupLanes; lane += lanes) {
    sorted.Sort(planes, lane);
    const auto low = sorted.At(planes, trim);
    const auto high = sorted.At(planes, planes.votes() - 1 - trim);
    hn::Store(low, d, out.low + lane);
    hn::Store(high, d, out.high + lane);
    if (planes.zeros == 0) {
      auto equal = sorted.nan;
      if (trim > 0) {
        equal = hn::Or(equal, hn::Eq(sorted.At(planes, trim - 1), low));
        equal = hn::Or(equal, hn::Eq(sorted.At(planes, planes.count - trim), high));
      }
      if (hn::AllFalse(d, equal)) {
        hn::Store(zero, d, out.drop_low + lane);
        hn::Store(hn::Set(d, static_cast<T>(planes.count)), d, out.keep_high + lane);
        hn::Store(zero, d, out.nan + lane);
        continue;
      }
    }
    out.are_strict = false;
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

// Adds the values that stay. kWeighted: times their weights, which are added, too. kStrict: thresholds.are_strict.
template <typename T, bool kWeighted, bool kStrict>
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
      auto goes = hn::Or(hn::Lt(v, low), hn::Gt(v, high));
      if constexpr (!kStrict) {
        const auto is_low = hn::Eq(v, low);
        const auto is_high = hn::Eq(v, high);
        goes = hn::Or(goes, hn::And(is_low, hn::Lt(num_low, drop_low)));
        goes = hn::Or(goes, hn::And(is_high, hn::Ge(num_high, keep_high)));
        num_low = hn::Add(num_low, hn::IfThenElseZero(is_low, one));
        num_high = hn::Add(num_high, hn::IfThenElseZero(is_high, one));
        goes = hn::And(goes, no_nan);
      }
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
  const bool is_weighted = weights.weights != nullptr;
  if (thresholds.are_strict) {
    is_weighted ? SumBetween<T, true, true>(planes, weights, thresholds, sums, divisors)
                : SumBetween<T, false, true>(planes, weights, thresholds, sums, divisors);
  } else {
    is_weighted ? SumBetween<T, true, false>(planes, weights, thresholds, sums, divisors)
                : SumBetween<T, false, false>(planes, weights, thresholds, sums, divisors);
  }
  if (is_weighted) return;
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
