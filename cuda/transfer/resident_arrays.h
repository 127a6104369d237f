// ResidentArrays: arrays of pending updates that have a copy on the device since they arrived.
#ifndef SPARSEAGG_CUDA_TRANSFER_RESIDENT_ARRAYS_H_
#define SPARSEAGG_CUDA_TRANSFER_RESIDENT_ARRAYS_H_

#include <cstddef>
#include <unordered_map>
#include <utility>

#include "cuda/device/device_memory.h"

namespace sparseagg::cuda {

// The array in host memory stays what counts: copies may be dropped at any time between operations, and then the array
// is sent again. Not thread-safe: used under the engine's device lock.
class ResidentArrays {
 public:
  // `max_bytes`: that copies may take together.
  explicit ResidentArrays(size_t max_bytes) : max_bytes_(max_bytes) {}

  bool HasRoomFor(size_t bytes) const { return bytes <= max_bytes_ - bytes_; }
  // Keeps the copy of an array. Requires: HasRoomFor(copy.bytes()); the array has no copy.
  void Add(const void* array, DeviceBuffer copy) {
    const size_t bytes = copy.bytes();
    copies_.emplace(array, std::move(copy));
    bytes_ += bytes;
  }
  // Returns: the copy, or null if there is none or it has fewer than `bytes`: updates of different lengths may borrow
  // arrays that begin at one address.
  const std::byte* Find(const void* array, size_t bytes) const {
    const auto found = copies_.find(array);
    return found == copies_.end() || found->second.bytes() < bytes ? nullptr : found->second.as<std::byte>();
  }
  // Frees the copy, if there is one, after the work requested before.
  void Drop(const void* array) {
    const auto found = copies_.find(array);
    if (found == copies_.end()) return;
    bytes_ -= found->second.bytes();
    copies_.erase(found);
  }
  void DropAll() {
    copies_.clear();
    bytes_ = 0;
  }
  size_t bytes() const { return bytes_; }

 private:
  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::unordered_map<const void*, DeviceBuffer> copies_;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TRANSFER_RESIDENT_ARRAYS_H_
