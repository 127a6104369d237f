// PinnedBuffers: a ring of pinned host memory that copies of a device go through.
#ifndef SPARSEAGG_CUDA_TRANSFER_PINNED_BUFFERS_H_
#define SPARSEAGG_CUDA_TRANSFER_PINNED_BUFFERS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device/device.h"

namespace sparseagg::cuda {

// Buffers of one size, allocated at first use and kept. Not thread-safe.
class PinnedBuffers {
 public:
  struct Buffer {
    std::byte* memory = nullptr;
    EventId event = 0;       // after the buffer's last copy
    bool in_flight = false;  // that copy has perhaps not happened
  };

  PinnedBuffers(Device& device, size_t buffer_bytes, size_t num_buffers)
      : device_(device), buffer_bytes_(buffer_bytes), num_buffers_(num_buffers) {}
  PinnedBuffers(const PinnedBuffers&) = delete;
  PinnedBuffers& operator=(const PinnedBuffers&) = delete;
  ~PinnedBuffers();

  size_t buffer_bytes() const { return buffer_bytes_; }
  size_t num_buffers() const { return num_buffers_; }
  // Returns: the buffer after the one that the call before returned. Its last copy may be under way (Await).
  absl::StatusOr<Buffer*> Next();
  // Notes that copies of the buffer have been asked for on `lane`.
  absl::Status Depart(Buffer& buffer, Lane lane);
  // Blocks: until the buffer's last copy has happened.
  absl::Status Await(Buffer& buffer);
  // Requires: no copies under way.
  void Reset();

 private:
  absl::Status EnsureAllocated();

  Device& device_;
  const size_t buffer_bytes_;
  const size_t num_buffers_;
  std::vector<Buffer> buffers_;
  size_t current_ = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TRANSFER_PINNED_BUFFERS_H_
