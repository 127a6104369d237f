#include "host/base/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/base/stream_copy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, which includes it again for each target.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sparseagg::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void CopyPastCaches(uint8_t* to, const uint8_t* from, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const size_t misaligned = reinterpret_cast<uintptr_t>(to) % lanes;
  const size_t head = misaligned == 0 ? 0 : std::min(bytes, lanes - misaligned);
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + lanes <= bytes; i += lanes) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  std::memcpy(to + i, from + i, bytes - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace sparseagg::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparseagg::internal {

HWY_EXPORT(CopyPastCaches);

void StreamCopy(void* to, const void* from, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(CopyPastCaches)(static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes);
}

void EndStreaming() { hwy::FlushStream(); }

}  // namespace sparseagg::internal
#endif  // HWY_ONCE
