#include "host/clip/clip_kernels.h"

#include <algorithm>
#include <cmath>

#include "host/base/half.h"

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

// A caller's arrays lie in small pages, at whose ends the hardware prefetcher stops, and the lanes fix the order in
// which values are read. So while a block is read, the next one is prefetched at four places at once
// (input_check_kernels.cc has the figures).
constexpr size_t kPlaces = 4;
constexpr size_t kPlaceBytes = 4096;
constexpr size_t kLineBytes = 64;
constexpr size_t kBlockBytes = kPlaces * kPlaceBytes;
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
  constexpr size_t kStep = HWY_MAX(kLineBytes / SizeOf(kDType), kLanes);
  for (uint64_t i = head; i < whole; i += kLanes) {
    if ((i - head) % kStep == 0) {
      const size_t byte = (i - head) * SizeOf(kDType);
      const size_t line = byte % kBlockBytes / kLineBytes;
      hwy::Prefetch(values + byte - byte % kBlockBytes + kBlockBytes + line % kPlaces * kPlaceBytes +
                    line / kPlaces * kLineBytes);
    }
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
  return cpu::HWY_NAMESPACE::WithFloatType(
      dtype, [&](auto type) HWY_ATTR { return AddSquaresOf<decltype(type)::value>(values, count, limit, sum); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::clip
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::clip {

HWY_EXPORT(AddSquares);

double AddSquares(DType dtype, const std::byte* values, uint64_t count, double limit, SquaredSum& sum) {
  return HWY_DYNAMIC_DISPATCH(AddSquares)(dtype, values, count, limit, sum);
}

namespace {

template <typename T>
void ClampAs(std::byte* values, uint64_t count, T limit) {
  auto* const typed = reinterpret_cast<T*>(values);
  for (uint64_t i = 0; i < count; ++i) typed[i] = std::min(std::max(typed[i], -limit), limit);
}

// Magnitudes of 16-bit floats are in the order of their bits.
void ClampSixteenBits(std::byte* values, uint64_t count, uint16_t limit) {
  auto* const typed = reinterpret_cast<uint16_t*>(values);
  for (uint64_t i = 0; i < count; ++i) {
    const uint16_t magnitude = typed[i] & 0x7fff;
    typed[i] = static_cast<uint16_t>((typed[i] & 0x8000) | std::min(magnitude, limit));
  }
}

}  // namespace

void Clamp(DType dtype, std::byte* values, uint64_t count, double limit) {
  switch (dtype) {
    case DType::kFloat16:
      return ClampSixteenBits(values, count, RoundToFloat16(limit));
    case DType::kBFloat16:
      return ClampSixteenBits(values, count, RoundToBFloat16(limit));
    case DType::kFloat64:
      return ClampAs<double>(values, count, limit);
    default:
      return ClampAs<float>(values, count, static_cast<float>(limit));
  }
}

}  // namespace sparseagg::clip
#endif  // HWY_ONCE
