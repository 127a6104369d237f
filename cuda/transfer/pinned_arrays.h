// PinnedArrays: which parts of pending updates lie in pinned memory.
#ifndef SPARSEAGG_CUDA_TRANSFER_PINNED_ARRAYS_H_
#define SPARSEAGG_CUDA_TRANSFER_PINNED_ARRAYS_H_

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "cuda/device/device.h"
#include "cuda/tuning.h"

namespace sparseagg::cuda {

// Pins arrays when they arrive, and knows which are pinned, since asking the device takes longer than copying a small
// array. Thread-safe.
class PinnedArrays {
 public:
  PinnedArrays(Device& device, const Tuning& tuning)
      : device_(device), min_bytes_(tuning.min_pinned_bytes), max_bytes_(tuning.max_pinned_bytes) {}

  // Bytes [begin, end) of an array. Empty where none are pinned.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  // Pins the whole pages of an array of at least Tuning::min_pinned_bytes, as long as at most max_pinned_bytes are
  // pinned, or finds that someone else has pinned the array. Returns: whether the array was added; then Remove it
  // before it goes. Slow. Does nothing for an array that is there already.
  bool Add(const void* array, size_t bytes);
  // Does nothing for an array that is not there.
  void Remove(const void* array);
  Range Find(const void* array) const;

 private:
  struct Entry {
    Range range;
    bool is_ours = false;  // to unpin
  };

  // Pins the whole pages. Returns: an empty range if there are none, enough is pinned, or the device refuses.
  Range PinPages(const void* array, size_t bytes);

  Device& device_;
  const size_t min_bytes_;
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Entry> arrays_;  // guarded by mutex_, as is the next
  size_t pinned_bytes_ = 0;                        // by us
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TRANSFER_PINNED_ARRAYS_H_
