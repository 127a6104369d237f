#include "host/clip/clip_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "host/cpu/finish/rounding.h"
#include "host/cpu/simd/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/clip/clip_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/cpu/simd/vectors-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::clip {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using cpu::HWY_NAMESPACE::Doubles;
using cpu::HWY_NAMESPACE::LoadDoubles;
using cpu::HWY_NAMESPACE::LoadSome;
using cpu::HWY_NAMESPACE::StoreSome;

// A caller's arrays lie in small pages, at whose ends the hardware prefetcher stops.
constexpr size_t kAheadBytes = 2048;
constexpr size_t kLanes = 8;
static_assert(hn::MaxLanes(Doubles()) <= kLanes);

// Adds squares of the values [begin, end), one by one.
template <DType kDType>
HWY_INLINE void AddOneByOne(const std::byte* values, uint64_t begin, uint64_t end, double limit, SquaredSum& sum,
                            double& largest) {
  for (uint64_t i = begin; i < end; ++i) {
    const double magnitude = std::abs(hn::GetLane(LoadDoubles<kDType>(values, i, 1)));
    largest = std::max(largest, magnitude);
    const double clamped = std::min(magnitude, limit);
    sum.lanes[sum.num_values++ % kLanes] += clamped * clamped;
  }
}

template <DType kDType>
HWY_INLINE double AddSquaresOf(const std::byte* values, uint64_t count, double limit, SquaredSum& sum) {
  const Doubles d;
  const size_t n = hn::Lanes(d);
  double largest = 0.0;
  const uint64_t head = std::min<uint64_t>(count, (kLanes - sum.num_values % kLanes) % kLanes);
  AddOneByOne<kDType>(values, 0, head, limit, sum, largest);
  const uint64_t whole = head + (count - head) / kLanes * kLanes;
  hn::Vec<Doubles> sums[kLanes / hn::MaxLanes(Doubles())];
  auto largest_ones = hn::Set(d, largest);
  const auto limits = hn::Set(d, limit);
  for (size_t v = 0; v < kLanes / n; ++v) sums[v] = hn::LoadU(d, sum.lanes + v * n);
  for (uint64_t i = head; i < whole; i += kLanes) {
    hwy::Prefetch(values + i * SizeOf(kDType) + kAheadBytes);
    for (size_t v = 0; v < kLanes / n; ++v) {
      const auto magnitudes = hn::Abs(LoadDoubles<kDType>(values, i + v * n, n));
      largest_ones = hn::Max(largest_ones, magnitudes);
      const auto clamped = hn::Min(magnitudes, limits);
      sums[v] = hn::Add(sums[v], hn::Mul(clamped, clamped));
    }
  }
  for (size_t v = 0; v < kLanes / n; ++v) hn::StoreU(sums[v], d, sum.lanes + v * n);
  sum.num_values += whole - head;
  largest = hn::GetLane(hn::MaxOfLanes(d, largest_ones));
  AddOneByOne<kDType>(values, whole, count, limit, sum, largest);
  return largest;
}

double AddSquares(DType dtype, const std::byte* values, uint64_t count, double limit, SquaredSum& sum) {
  switch (dtype) {
    case DType::kFloat16:
      return AddSquaresOf<DType::kFloat16>(values, count, limit, sum);
    case DType::kBFloat16:
      return AddSquaresOf<DType::kBFloat16>(values, count, limit, sum);
    case DType::kFloat64:
      return AddSquaresOf<DType::kFloat64>(values, count, limit, sum);
    default:
      return AddSquaresOf<DType::kFloat32>(values, count, limit, sum);
  }
}

// Scales values in place, to float64, rounded to nearest. The values have slack behind them.
void Scale(double* values, size_t count, double limit, double factor) {
  const Doubles d;
  const auto high = hn::Set(d, limit);
  const auto low = hn::Set(d, -limit);
  const auto by = hn::Set(d, factor);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto clamped = hn::Min(hn::Max(hn::LoadU(d, values + i), low), high);
    hn::StoreU(hn::Mul(clamped, by), d, values + i);
  }
}

// The same, but rounded to odd: to the neighbour with an odd last bit, if the product is not exact. Another rounding to
// a type with at least two bits less then gives what one rounding of the exact product gives (Boldo and Melquiond,
// "Emulation of FMA and correctly rounded sums", 2008). The error of a product is a float64, unless it underflows, far
// below the smallest value of those types.
void ScaleToOdd(double* values, size_t count, double limit, double factor) {
  const Doubles d;
  const hn::RebindToSigned<Doubles> di;
  const auto high = hn::Set(d, limit);
  const auto low = hn::Set(d, -limit);
  const auto by = hn::Set(d, factor);
  const auto one = hn::Set(di, 1);
  const auto zero = hn::Zero(d);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto clamped = hn::Min(hn::Max(hn::LoadU(d, values + i), low), high);
    const auto product = hn::Mul(clamped, by);
#if HWY_NATIVE_FMA
    const auto error = hn::MulSub(clamped, by, product);
#else
    HWY_ALIGN double exact[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(double)];
    HWY_ALIGN double rounded[HWY_MAX(HWY_MAX_BYTES, 64) / sizeof(double)];
    hn::Store(clamped, d, exact);
    hn::Store(product, d, rounded);
    for (size_t j = 0; j < hn::Lanes(d); ++j) exact[j] = std::fma(exact[j], factor, -rounded[j]);
    const auto error = hn::Load(d, exact);
#endif
    const auto bits = hn::BitCast(di, product);
    const auto is_exact = hn::RebindMask(di, hn::Eq(error, zero));
    const auto is_odd = hn::Eq(hn::And(bits, one), one);
    // Of one sign: the exact product is beyond the rounded one, away from zero.
    const auto grows = hn::RebindMask(di, hn::Gt(hn::CopySign(error, hn::Xor(error, product)), zero));
    const auto moved = hn::IfThenElse(grows, hn::Add(bits, one), hn::Sub(bits, one));
    hn::StoreU(hn::BitCast(d, hn::IfThenElse(hn::Or(is_exact, is_odd), bits, moved)), d, values + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::clip
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::clip {

HWY_EXPORT(AddSquares);
HWY_EXPORT(Scale);
HWY_EXPORT(ScaleToOdd);

double AddSquares(DType dtype, const std::byte* values, uint64_t count, double limit, SquaredSum& sum) {
  return HWY_DYNAMIC_DISPATCH(AddSquares)(dtype, values, count, limit, sum);
}

void ScaleAndRound(DType from, const std::byte* values, uint64_t count, double limit, double factor, DType to,
                   std::byte* out) {
  constexpr size_t kBatch = 512;
  double batch[kBatch + cpu::kVectorSlack];
  for (uint64_t first = 0; first < count; first += kBatch) {
    const auto n = static_cast<size_t>(std::min<uint64_t>(kBatch, count - first));
    const std::byte* const at = values + first * SizeOf(from);
    switch (from) {
      case DType::kFloat16:
        cpu::LoadFloat16(at, n, n, 1.0, batch);
        break;
      case DType::kBFloat16:
        cpu::LoadBFloat16(at, n, n, 1.0, batch);
        break;
      case DType::kFloat64:
        cpu::LoadFloat64(at, n, n, 1.0, batch);
        break;
      default:
        cpu::LoadFloat32(at, n, n, 1.0, batch);
    }
    if (to == DType::kFloat64) {
      HWY_DYNAMIC_DISPATCH(Scale)(batch, n, limit, factor);
    } else {
      HWY_DYNAMIC_DISPATCH(ScaleToOdd)(batch, n, limit, factor);
    }
    cpu::RoundTo(to, batch, n, out + first * SizeOf(to));
  }
}

}  // namespace sparseagg::clip
#endif  // HWY_ONCE
