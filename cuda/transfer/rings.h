// The memory through which a session moves bytes between host and device: pinned buffers and blocks, a ring of them,
// and copies that stay on the device.
#ifndef SPARSEAGG_CUDA_TRANSFER_RINGS_H_
#define SPARSEAGG_CUDA_TRANSFER_RINGS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cuda/device/device.h"
#include "cuda/kernels/fetch.h"
#include "cuda/tuning.h"
#include "host/base/host_threads.h"

namespace sparseagg::cuda {

// Blocks of memory to which the device writes results. A block that its last owner has let go serves another result,
// since pinning takes longer than copying. Not thread-safe; but blocks may be let go at any time, on any thread, also
// after the arena and the device have gone. Requires: copies to a block have happened before another operation starts.
class PinnedArena {
 public:
  // `max_bytes`: of all blocks, in use or not. `unit`: the smallest block.
  PinnedArena(Device& device, size_t max_bytes, size_t unit) : device_(device), max_bytes_(max_bytes), unit_(unit) {}

  // Returns: uninitialised memory, aligned to 256. Null if there is no room, or for fewer bytes than a unit. Blocks:
  // where memory is pinned.
  absl::StatusOr<std::shared_ptr<std::byte>> Take(uint64_t bytes);
  // Gives blocks that are not in use back to the system, the oldest first, until `most_bytes` are left.
  void Trim(size_t most_bytes = 0);

 private:
  struct Block {
    std::shared_ptr<std::byte> memory;
    size_t bytes = 0;
    std::atomic<bool> in_use = false;
  };

  Device& device_;
  const size_t max_bytes_;
  const size_t unit_;
  std::vector<std::shared_ptr<Block>> blocks_;  // the most recently pinned last
  size_t bytes_ = 0;
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
  bool pinned = false;  // in host memory that the device reads where it is
};

// Several threads fill one buffer while the copies of the others are under way. Parts of arrays that their owner has
// pinned go without a buffer, and those of resident arrays come from the device itself: large ones as copies of their
// own, all small ones together by a kernel. Not thread-safe.
class StagingRing {
 public:
  StagingRing(Device& device, DeviceMemory& memory, HostThreads& threads, const ResidentArrays& resident,
              const Tuning& tuning)
      : device_(device), memory_(memory), threads_(threads), resident_(resident), tuning_(tuning) {}
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  ~StagingRing();

  // Copies host to device, on Lane::kCopy; or from the copy that the device has. The destination begins at byte `first`
  // of what Device::Allocate returned. Consecutive copies to adjoining places of one allocation are sent together; all
  // are on their way only after Flush. Requires: the array does not change before the copy has happened.
  absl::Status CopyIn(void* d_allocation, size_t first, const HostPart& part);
  // The same through a buffer, for memory that must not change only until Flush returns.
  absl::Status Stage(void* d_allocation, size_t first, const void* from, size_t bytes);
  absl::Status Flush();

  // Copies pieces to memory that is not pinned, on Lane::kResult, so that they wait neither for inputs nor for later
  // merges. A device that hangs writes to buffers only, never to memory that someone else has by now. Blocks: until all
  // is there.
  absl::Status CopyOut(absl::Span<const CopyPiece> pieces);
  // Copies at most kSmallBytes on Lane::kCompute, past results: a kernel writes them, since a copy would wait for the
  // copies of results. Blocks: until `to` is written.
  static constexpr size_t kSmallBytes = 256;
  absl::Status CopyOutSmall(void* to, const void* d_from, size_t bytes);

  // Bytes of CopyIn from host memory so far, by their way. Thread-safe.
  uint64_t staged_bytes() const { return staged_bytes_; }
  uint64_t direct_bytes() const { return direct_bytes_; }

  // Discards what was not sent. Requires: no work under way on any lane (after an error).
  void Reset();

 private:
  // Pinned memory, allocated at first use and kept.
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    EventId event = 0;       // after the buffer's last copy
    bool in_flight = false;  // that copy has perhaps not happened
  };
  // Returns: the buffers in turn. Blocks: until the last copy of the one returned has happened.
  absl::StatusOr<Buffer*> Next();
  // Notes that copies of the buffer have been asked for on `lane`.
  absl::Status Depart(Buffer& buffer, Lane lane);
  // Blocks: until the buffer's last copy has happened.
  absl::Status Await(Buffer& buffer);
  absl::Status FlushBuffer();
  absl::Status FlushFetch();
  void AddChunks(void* d_to, const void* d_from, size_t bytes);

  Device& device_;
  DeviceMemory& memory_;
  HostThreads& threads_;
  const ResidentArrays& resident_;
  const Tuning tuning_;
  std::vector<Buffer> buffers_;
  size_t next_ = 0;
  std::shared_ptr<std::byte> small_;
  // What goes into the next buffer, and from there to the device.
  std::vector<CopyPiece> pieces_;
  size_t filled_ = 0;
  std::byte* d_destination_ = nullptr;
  // Where the destination lies. CUDA refuses a copy that spans two allocations, and those of a pool may adjoin.
  const void* d_allocation_ = nullptr;
  std::vector<FetchChunk> chunks_;  // what the kernel will fetch
  bool fetches_from_host_ = false;  // some of it
  std::atomic<uint64_t> staged_bytes_ = 0;
  std::atomic<uint64_t> direct_bytes_ = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TRANSFER_RINGS_H_
