#include "host/wire/unpack_kernels.h"

#include <array>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/wire/unpack_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes them again for each target.
#include "host/base/vectors-inl.h"
#include "hwy/highway.h"

#ifndef SPARSEAGG_HOST_WIRE_UNPACK_TABLES_
#define SPARSEAGG_HOST_WIRE_UNPACK_TABLES_
namespace sparseagg::wire::internal {

// Where the eight gaps of a group are in its bytes, for one width. Each half of a vector takes four gaps. The first
// half begins with the group. The second half begins width / 2 bytes later, plus half a byte if the width is odd.
struct GroupTable {
  alignas(32) std::array<uint8_t, 32> bytes;   // indices, within its half, of the four bytes that hold each gap
  alignas(32) std::array<uint32_t, 8> shifts;  // bit in these bytes at which the gap begins
};

constexpr std::array<GroupTable, kMaxKernelWidth + 1> MakeGroupTables() {
  std::array<GroupTable, kMaxKernelWidth + 1> tables{};
  for (unsigned width = 0; width < tables.size(); ++width) {
    for (unsigned lane = 0; lane < 8; ++lane) {
      const unsigned bit = (lane % 4) * width + (lane < 4 ? 0 : 4 * (width % 2));
      for (unsigned b = 0; b < 4; ++b) tables[width].bytes[4 * lane + b] = static_cast<uint8_t>(bit / 8 + b);
      tables[width].shifts[lane] = bit % 8;
    }
  }
  return tables;
}

inline constexpr std::array<GroupTable, kMaxKernelWidth + 1> kGroupTables = MakeGroupTables();

}  // namespace sparseagg::wire::internal
#endif  // SPARSEAGG_HOST_WIRE_UNPACK_TABLES_

HWY_BEFORE_NAMESPACE();
namespace sparseagg::wire::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

void Unpack32(const uint8_t* packed, int width, uint32_t before, uint32_t* HWY_RESTRICT out) {
  const uint32_t mask = (uint32_t{1} << width) - 1;
  for (size_t i = 0; i < kBlockKeys; ++i) {
    const size_t bit = i * static_cast<size_t>(width);
    uint32_t word;
    std::memcpy(&word, packed + bit / 8, sizeof(word));
    before += (word >> (bit % 8) & mask) + 1;
    out[i] = before;
  }
}

#else

#if HWY_HAVE_SCALABLE
using Keys = hn::CappedTag<uint32_t, 4>;
constexpr size_t kLanes = 4;
#else
using Keys = hn::CappedTag<uint32_t, 8>;
constexpr size_t kLanes = hn::MaxLanes(Keys());
#endif
static_assert(kLanes == 4 || kLanes == 8);
using Vec = hn::Vec<Keys>;

// Inclusive prefix sums over the lanes.
HWY_INLINE Vec PrefixSum(Vec v) {
  const Keys d;
  v = hn::Add(v, hn::ShiftLeftLanes<1>(d, v));
  v = hn::Add(v, hn::ShiftLeftLanes<2>(d, v));
  if constexpr (kLanes == 8) v = hn::Add(v, hn::ConcatLowerLower(d, hn::Broadcast<3>(v), hn::Zero(d)));
  return v;
}

HWY_INLINE hn::Vec<hn::Repartition<uint8_t, Keys>> LoadHalves(const uint8_t* first, const uint8_t* second) {
  const hn::Repartition<uint8_t, Keys> d;
  if constexpr (kLanes == 8) {
    const hn::Half<decltype(d)> half;
    return hn::Combine(d, hn::LoadU(half, second), hn::LoadU(half, first));
  } else {
    (void)second;
    return hn::LoadU(d, first);
  }
}

void Unpack32(const uint8_t* packed, int width, uint32_t before, uint32_t* HWY_RESTRICT out) {
  const Keys d;
  const hn::Repartition<uint8_t, Keys> d8;
  const GroupTable& table = kGroupTables[static_cast<size_t>(width)];
  const auto mask = hn::Set(d, (uint32_t{1} << width) - 1);
  const auto one = hn::Set(d, 1u);
  HWY_ALIGN uint32_t last_lane[kLanes];
  for (uint32_t& lane : last_lane) lane = kLanes - 1;
  const auto last = hn::SetTableIndices(d, last_lane);
  auto carry = hn::Set(d, before);
  for (size_t group = 0; group < kBlockKeys / 8; ++group, packed += width) {
    for (size_t lane = 0; lane < 8; lane += kLanes) {
      const uint8_t* from = packed + (lane == 0 ? 0 : width / 2);
      const auto bytes =
          hn::TableLookupBytes(LoadHalves(from, packed + width / 2), hn::LoadU(d8, table.bytes.data() + 4 * lane));
      const auto gaps = hn::And(hn::Shr(hn::BitCast(d, bytes), hn::LoadU(d, table.shifts.data() + lane)), mask);
      const auto sums = PrefixSum(hn::Add(gaps, one));
      hn::StoreU(hn::Add(sums, carry), d, out + 8 * group + lane);
      carry = hn::Add(carry, hn::TableLookupLanes(sums, last));
    }
  }
}

#endif

void Unpack64(const uint8_t* packed, int width, uint64_t before, uint64_t* HWY_RESTRICT out) {
  // Offsets from before + 1. They fit 32 bits, as the sum of a block's gaps does.
  HWY_ALIGN uint32_t offsets[kBlockKeys];
  Unpack32(packed, width, ~uint32_t{0}, offsets);
  const hn::ScalableTag<uint64_t> d;
  const hn::Rebind<uint32_t, decltype(d)> d32;
  const auto base = hn::Set(d, before + 1);
  for (size_t i = 0; i < kBlockKeys; i += hn::Lanes(d)) {
    hn::StoreU(hn::Add(base, hn::PromoteTo(d, hn::LoadU(d32, offsets + i))), d, out + i);
  }
}

// Stores the vectors that make(i, n) returns: the n values from i on.
template <class Make>
HWY_INLINE void StoreFloats(size_t count, float* HWY_RESTRICT out, Make make) {
  const simd::HWY_NAMESPACE::Floats d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(make(i, lanes), d, out + i);
  if (i < count) simd::HWY_NAMESPACE::StoreSome(make(i, count - i), d, count - i, out + i);
}

void WidenHalves(const void* bits, size_t count, float* HWY_RESTRICT out) {
  namespace sn = simd::HWY_NAMESPACE;
  const auto* from = static_cast<const char*>(bits);
  StoreFloats(count, out, [&](size_t i, size_t n) HWY_ATTR {
    return sn::WidenHalf(hn::PromoteTo(sn::Words(), sn::LoadSome(sn::Halves(), from + 2 * i, n)));
  });
}

void WidenBrainHalves(const void* bits, size_t count, float* HWY_RESTRICT out) {
  namespace sn = simd::HWY_NAMESPACE;
  const auto* from = static_cast<const char*>(bits);
  StoreFloats(count, out, [&](size_t i, size_t n) HWY_ATTR {
    const auto words = hn::PromoteTo(sn::Words(), sn::LoadSome(sn::Halves(), from + 2 * i, n));
    return hn::BitCast(sn::Floats(), hn::ShiftLeft<16>(words));
  });
}

void ScaleBytes(const void* multiples, size_t count, float scale, float* HWY_RESTRICT out) {
  namespace sn = simd::HWY_NAMESPACE;
  const sn::Floats d;
  const hn::Rebind<int32_t, decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto factor = hn::Set(d, scale);
  const auto* from = static_cast<const char*>(multiples);
  StoreFloats(count, out, [&](size_t i, size_t n) HWY_ATTR {
    const auto integers = hn::PromoteTo(d32, sn::LoadSome(d8, from + i, n));
    return hn::Mul(hn::ConvertTo(d, integers), factor);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::wire::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::wire::internal {

HWY_EXPORT(Unpack32);
HWY_EXPORT(Unpack64);
HWY_EXPORT(WidenHalves);
HWY_EXPORT(WidenBrainHalves);
HWY_EXPORT(ScaleBytes);

void UnpackBlock32(const uint8_t* packed, int width, uint32_t before, uint32_t* out) {
  HWY_DYNAMIC_DISPATCH(Unpack32)(packed, width, before, out);
}
void UnpackBlock64(const uint8_t* packed, int width, uint64_t before, uint64_t* out) {
  HWY_DYNAMIC_DISPATCH(Unpack64)(packed, width, before, out);
}
void WidenFloat16s(const void* bits, size_t count, float* out) { HWY_DYNAMIC_DISPATCH(WidenHalves)(bits, count, out); }
void WidenBFloat16s(const void* bits, size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(WidenBrainHalves)(bits, count, out);
}
void ScaleInt8s(const void* multiples, size_t count, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(ScaleBytes)(multiples, count, scale, out);
}

}  // namespace sparseagg::wire::internal
#endif  // HWY_ONCE
