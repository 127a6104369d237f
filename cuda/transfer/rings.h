// The memory through which a session moves bytes between host and device: pinned buffers, rings of them, and copies
// that stay on the device.
#ifndef SPARSEAGG_CUDA_TRANSFER_RINGS_H_
#define SPARSEAGG_CUDA_TRANSFER_RINGS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/device/device.h"
#include "cuda/kernels/fetch.h"
#include "cuda/tuning.h"
#include "host/base/host_threads.h"

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

#endif  // SPARSEAGG_CUDA_TRANSFER_RINGS_H_
