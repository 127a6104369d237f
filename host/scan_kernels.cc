#include "host/scan_kernels.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/scan_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements after which a pass looks at what it has found, so that the loop itself has no branch.
constexpr size_t kStride = 4096;

template <typename T>
HWY_INLINE T LoadOne(const void* from, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
HWY_INLINE KeyFacts FindKeyFacts(const void* keys, size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const T* from = static_cast<const T*>(keys);
  T largest_one = LoadOne<T>(keys, 0);
  auto largest = hn::Set(d, largest_one);
  auto descents = hn::Zero(d);
  auto repeats = hn::Zero(d);
  size_t i = 1;
  for (; i + lanes <= count; i += lanes) {
    const auto key = hn::LoadU(d, from + i);
    const auto previous = hn::LoadU(d, from + i - 1);
    largest = hn::Max(largest, key);
    descents = hn::Or(descents, hn::VecFromMask(d, hn::Gt(previous, key)));
    repeats = hn::Or(repeats, hn::VecFromMask(d, hn::Eq(previous, key)));
  }
  KeyFacts facts;
  facts.descends = !hn::AllTrue(d, hn::Eq(descents, hn::Zero(d)));
  facts.repeats = !hn::AllTrue(d, hn::Eq(repeats, hn::Zero(d)));
  largest_one = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < count; ++i) {
    const T key = LoadOne<T>(keys, i);
    const T previous = LoadOne<T>(keys, i - 1);
    largest_one = std::max(largest_one, key);
    facts.descends |= key < previous;
    facts.repeats |= key == previous;
  }
  facts.largest = largest_one;
  return facts;
}

template <typename T>
HWY_INLINE size_t FindAllBits(const void* values, size_t count, T mask) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto wanted = hn::Set(d, mask);
  const T* from = static_cast<const T*>(values);
  size_t i = 0;
  while (i + lanes <= count) {
    const size_t begin = i;
    const size_t end = std::min(count, begin + kStride);
    auto found = hn::Zero(d);
    for (; i + lanes <= end; i += lanes) {
      found = hn::Or(found, hn::VecFromMask(d, hn::Eq(hn::And(hn::LoadU(d, from + i), wanted), wanted)));
    }
    if (!hn::AllTrue(d, hn::Eq(found, hn::Zero(d)))) {
      i = begin;
      break;
    }
  }
  for (; i < count; ++i) {
    if ((LoadOne<T>(values, i) & mask) == mask) return i;
  }
  return count;
}

KeyFacts KeyFacts32(const void* keys, size_t count) { return FindKeyFacts<uint32_t>(keys, count); }
KeyFacts KeyFacts64(const void* keys, size_t count) { return FindKeyFacts<uint64_t>(keys, count); }
size_t AllBits16(const void* values, size_t count, uint16_t mask) { return FindAllBits(values, count, mask); }
size_t AllBits32(const void* values, size_t count, uint32_t mask) { return FindAllBits(values, count, mask); }
size_t AllBits64(const void* values, size_t count, uint64_t mask) { return FindAllBits(values, count, mask); }

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::internal {

HWY_EXPORT(KeyFacts32);
HWY_EXPORT(KeyFacts64);
HWY_EXPORT(AllBits16);
HWY_EXPORT(AllBits32);
HWY_EXPORT(AllBits64);

KeyFacts FindKeyFacts32(const void* keys, size_t count) { return HWY_DYNAMIC_DISPATCH(KeyFacts32)(keys, count); }
KeyFacts FindKeyFacts64(const void* keys, size_t count) { return HWY_DYNAMIC_DISPATCH(KeyFacts64)(keys, count); }
size_t FindAllBits16(const void* values, size_t count, uint16_t mask) {
  return HWY_DYNAMIC_DISPATCH(AllBits16)(values, count, mask);
}
size_t FindAllBits32(const void* values, size_t count, uint32_t mask) {
  return HWY_DYNAMIC_DISPATCH(AllBits32)(values, count, mask);
}
size_t FindAllBits64(const void* values, size_t count, uint64_t mask) {
  return HWY_DYNAMIC_DISPATCH(AllBits64)(values, count, mask);
}

}  // namespace sparseagg::internal
#endif  // HWY_ONCE
