// PinnedArrays: which parts of pending updates lie in pinned memory.
#ifndef SPARSEAGG_CUDA_PINNED_ARRAYS_H_
#define SPARSEAGG_CUDA_PINNED_ARRAYS_H_

#include <cstddef>
#include <mutex>
#include <unordered_map>

namespace sparseagg::cuda {

// Found when an update arrives, since asking takes longer than copying a small array. Thread-safe.
class PinnedArrays {
 public:
  // Bytes [begin, end) of an array. Empty where none are pinned.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  // Returns: false, and does nothing, if the array is there already.
  bool Add(const void* array, Range pinned) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return arrays_.try_emplace(array, pinned).second;
  }
  void Remove(const void* array) {
    const std::lock_guard<std::mutex> lock(mutex_);
    arrays_.erase(array);
  }
  Range Find(const void* array) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = arrays_.find(array);
    return found == arrays_.end() ? Range() : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Range> arrays_;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_PINNED_ARRAYS_H_
