// StagingRing: copies from host memory to a device, through pinned buffers or directly.
#ifndef SPARSEAGG_CUDA_TRANSFER_STAGING_RING_H_
#define SPARSEAGG_CUDA_TRANSFER_STAGING_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cuda/device/device.h"
#include "cuda/device/device_memory.h"
#include "cuda/kernels/fetch.h"
#include "cuda/transfer/pinned_buffers.h"
#include "cuda/transfer/resident_arrays.h"
#include "cuda/tuning.h"
#include "host/base/host_threads.h"

namespace sparseagg::cuda {

// Part of an array in host memory, in bytes; or of one that the caller has in device memory.
struct HostPart {
  const void* array = nullptr;
  size_t first = 0;
  size_t bytes = 0;
  bool on_device = false;
};

// Several threads fill one buffer while the copies of the others are under way. Large parts of arrays that their owner
// has pinned go without a buffer. Parts of resident arrays come from the device itself: large ones as copies of their
// own, all small ones together by a kernel. Not thread-safe.
class StagingRing {
 public:
  StagingRing(Device& device, DeviceMemory& memory, HostThreads& threads, const ResidentArrays& resident,
              const Tuning& tuning)
      : device_(device),
        memory_(memory),
        threads_(threads),
        resident_(resident),
        tuning_(tuning),
        buffers_(device, tuning.staging_buffer_bytes, tuning.num_staging_buffers) {}

  // Copies host to device, on Lane::kCopy; or from the copy that the device has. The destination begins at byte `first`
  // of what Device::Allocate returned. Consecutive copies to adjoining places of one allocation are sent together; all
  // are on their way only after Flush. Requires: the array does not change before the copy has happened.
  absl::Status CopyIn(void* d_allocation, size_t first, const HostPart& part);
  // The same through a buffer, for memory that must not change only until Flush returns.
  absl::Status Stage(void* d_allocation, size_t first, const void* from, size_t bytes);
  absl::Status Flush();

  // Bytes of CopyIn from host memory so far, by their way.
  uint64_t staged_bytes() const { return staged_bytes_; }
  uint64_t direct_bytes() const { return direct_bytes_; }

  // Discards what was not sent. Requires: no work under way on any lane (after an error).
  void Reset();

 private:
  absl::Status FlushBuffer();
  absl::Status FlushFetch();
  absl::Status CopyResident(void* d_to, const std::byte* d_from, size_t bytes);
  void AddChunks(void* d_to, const void* d_from, size_t bytes);

  Device& device_;
  DeviceMemory& memory_;
  HostThreads& threads_;
  const ResidentArrays& resident_;
  const Tuning tuning_;
  PinnedBuffers buffers_;
  // What goes into the next buffer, and from there to the device.
  std::vector<CopyPiece> pieces_;
  size_t filled_ = 0;
  std::byte* d_destination_ = nullptr;
  // Where the destination lies. CUDA refuses a copy that spans two allocations, and those of a pool may adjoin.
  const void* d_allocation_ = nullptr;
  std::vector<FetchChunk> chunks_;  // what the kernel will fetch
  uint64_t staged_bytes_ = 0;
  uint64_t direct_bytes_ = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TRANSFER_STAGING_RING_H_
