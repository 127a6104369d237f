// ResultRing: copies from a device to host memory, through pinned buffers.
#ifndef SPARSEAGG_CUDA_TRANSFER_RESULT_RING_H_
#define SPARSEAGG_CUDA_TRANSFER_RESULT_RING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "cuda/device/device.h"
#include "cuda/transfer/pinned_buffers.h"
#include "cuda/tuning.h"
#include "host/base/host_threads.h"

namespace sparseagg::cuda {

// Results leave on their own lane, so they wait neither for inputs nor for later merges. They go through buffers that
// belong to the ring, so that a device that hangs never writes to memory that someone else has by now. Not thread-safe.
class ResultRing {
 public:
  ResultRing(Device& device, HostThreads& threads, const Tuning& tuning)
      : device_(device),
        threads_(threads),
        buffers_(device, tuning.staging_buffer_bytes, tuning.num_staging_buffers),
        small_(device, kSmallBytes, 1),
        part_bytes_(tuning.copy_part_bytes) {}

  // Copies on Lane::kResult. Requires: `to` stays valid until Drain or Forget has returned.
  absl::Status Send(void* to, const void* d_from, size_t bytes);
  // Blocks: until all that was sent is in host memory.
  absl::Status Drain();
  // Blocks: until what had been sent when num_sent() was so much has left the device. Threads copy it out of the
  // buffers in the meantime.
  absl::Status Receive(uint64_t num_sent);
  uint64_t num_sent() const { return num_sent_; }  // pieces

  // Lets go of what was sent and has not been drained, before its targets go. Blocks: until no thread copies.
  void Forget();

  // Copies at most kSmallBytes on Lane::kCompute, past what was sent: a kernel writes them, since a copy would wait for
  // the copies of results. Blocks: until `to` is written.
  static constexpr size_t kSmallBytes = 256;
  absl::Status CopyOutSmall(void* to, const void* d_from, size_t bytes);

  // Discards what was sent. Blocks: as Forget. Requires: no work under way on any lane (after an error).
  void Reset();

 private:
  struct Sent {
    PinnedBuffers::Buffer* buffer = nullptr;
    void* to = nullptr;
    size_t bytes = 0;
  };

  // Starts to copy the oldest buffer that was sent to host memory.
  absl::Status ReceiveOne();

  Device& device_;
  HostThreads& threads_;
  PinnedBuffers buffers_;
  PinnedBuffers small_;
  const size_t part_bytes_;
  std::deque<std::unique_ptr<HostThreads::Copying>> copying_;  // buffers on their way to host memory, the oldest first
  std::deque<Sent> sent_;                                      // those after them
  uint64_t num_sent_ = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TRANSFER_RESULT_RING_H_
