#include "cuda/transfer/pinned_arrays.h"

#include <algorithm>
#include <cstdint>

namespace sparseagg::cuda {

bool PinnedArrays::Add(const void* array, size_t bytes) {
  if (bytes < min_bytes_) return false;
  {
    // First, so that nobody else pins the array meanwhile, and that no memory is needed once it is pinned.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!arrays_.try_emplace(array).second) return false;
  }
  Entry entry;
  if (device_.IsPinned(array, bytes)) {
    entry.range = {0, bytes};
  } else {
    entry = {PinPages(array, bytes), true};
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = arrays_.find(array);
  found->second = entry;
  if (entry.range.begin != entry.range.end) return true;
  arrays_.erase(found);
  return false;
}

PinnedArrays::Range PinnedArrays::PinPages(const void* array, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<uintptr_t>(array);
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t last = (begin + bytes) / kPage * kPage;
  if (first >= last) return {};
  const Range range = {first - begin, last - begin};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (last - first > max_bytes_ - std::min(max_bytes_, pinned_bytes_)) return {};
    pinned_bytes_ += last - first;
  }
  if (device_.Pin(static_cast<const std::byte*>(array) + range.begin, last - first).ok()) return range;
  const std::lock_guard<std::mutex> lock(mutex_);
  pinned_bytes_ -= last - first;
  return {};
}

void PinnedArrays::Remove(const void* array) {
  Entry entry;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = arrays_.find(array);
    if (found == arrays_.end()) return;
    entry = found->second;
    arrays_.erase(found);
  }
  if (!entry.is_ours) return;
  device_.Unpin(static_cast<const std::byte*>(array) + entry.range.begin);
  const std::lock_guard<std::mutex> lock(mutex_);
  pinned_bytes_ -= entry.range.end - entry.range.begin;
}

PinnedArrays::Range PinnedArrays::Find(const void* array) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = arrays_.find(array);
  return found == arrays_.end() ? Range() : found->second.range;
}

}  // namespace sparseagg::cuda
