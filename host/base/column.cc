#include "host/base/column.h"

#include <pthread.h>
#include <sys/mman.h>

#include <bit>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace sparseagg::internal {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = size_t{4} << 10;
constexpr size_t kLargestPage = size_t{64} << 10;  // of kernels for aarch64; madvise takes whole pages only
constexpr size_t kHugePage = size_t{2} << 20;
// Smaller memory is not kept when it is freed.
constexpr size_t kSmallestKept = size_t{128} << 10;
// Larger memory is mapped, in huge pages.
constexpr size_t kSmallestMapped = 2 * kHugePage;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Kept blocks come in few sizes, so that a kept block often fits. At most an eighth of a block is surplus, since no
// limit counts the surplus. Therefore the tail of a mapped block may be too short for a huge page.
size_t BlockSize(size_t bytes) { return RoundUp(bytes, std::clamp(std::bit_floor(bytes) / 8, kPage, kHugePage)); }
bool IsMapped(size_t block_size) { return block_size >= kSmallestMapped; }

// Aligned by hand: the C library's aligned allocations bypass its caches of small blocks and take several times as
// long. The byte before the memory holds the distance from the start of the allocation.
void* Allocate(size_t size) {
  auto* const block = static_cast<std::byte*>(::operator new(size + kAlignment));
  const size_t moved = kAlignment - reinterpret_cast<uintptr_t>(block) % kAlignment;
  std::byte* const memory = block + moved;
  memory[-1] = static_cast<std::byte>(moved);
  return memory;
}
void Free(void* memory) noexcept {
  auto* const start = static_cast<std::byte*>(memory);
  ::operator delete(start - static_cast<size_t>(start[-1]));
}

void* Map(size_t size) {
  // Maps one huge page more than needed, so that the start can be aligned to a huge page, and unmaps the surplus.
  // Without MAP_NORESERVE, so that the system refuses a mapping beyond all its memory instead of killing the process
  // later.
  size_t space = size + kHugePage;
  void* mapping = mmap(nullptr, space, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  void* start = mapping;
  std::align(kHugePage, size, start, space);  // `space` becomes the bytes from `start` to the end of the mapping
  const size_t before = size + kHugePage - space;
  if (before > 0) munmap(mapping, before);
  if (space > size) munmap(static_cast<std::byte*>(start) + size, space - size);
  madvise(start, size, MADV_HUGEPAGE);  // without huge pages it works too, only slower
  return start;
}

// Moves a mapping of `size` bytes to a new one of `larger` bytes, without copying. Throws std::bad_alloc.
void* Move(void* start, size_t size, size_t larger) {
  void* const target = Map(larger);
  // Replaces the pages mapped at `target`.
  if (mremap(start, size, larger, MREMAP_MAYMOVE | MREMAP_FIXED, target) != MAP_FAILED) return target;
  munmap(target, larger);
  throw std::bad_alloc();
}

class KeptBlocks;
KeptBlocks& Blocks();

// Freed blocks, kept for the next columns. Fresh pages cost a merge up to a third of its time, since the system clears
// them at first touch. Thread-safe.
class KeptBlocks {
 public:
  KeptBlocks() {
    kept_.reserve(kMaxKept + 1);  // so that Return never allocates
    // The lock is held during a fork, so that it is free in the child.
    pthread_atfork([] { Blocks().mutex_.lock(); }, [] { Blocks().mutex_.unlock(); }, [] { Blocks().mutex_.unlock(); });
  }

  // Returns: a kept block that fits, or a new one. Throws std::bad_alloc.
  void* Take(size_t bytes) {
    const size_t size = BlockSize(bytes);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      size_t best = kept_.size();
      for (size_t i = 0; i < kept_.size(); ++i) {
        if (Fits(kept_[i], bytes) && (best == kept_.size() || !IsBetter(kept_[best], kept_[i], bytes))) best = i;
      }
      if (best < kept_.size()) {
        const Block kept = kept_[best];
        if (IsMapped(kept.size)) mapped_[kept.start] = {kept.start, kept.size, ResidentWith(kept, bytes)};
        kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(best));
        kept_bytes_ -= kept.resident;
        return kept.start;
      }
    }
    if (!IsMapped(size)) return Allocate(size);
    void* start = Map(size);
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      mapped_[start] = {start, size, size};
    } catch (const std::bad_alloc&) {
      munmap(start, size);
      throw;
    }
    return start;
  }

  // See ExtendColumn.
  void* Extend(void* start, size_t bytes) {
    // Held to the end: once the pages have moved, another thread may map a block at their old address.
    const std::lock_guard<std::mutex> lock(mutex_);
    Block block = mapped_.at(start);
    if (bytes > block.size) {
      const size_t size = BlockSize(bytes);
      block.start = Move(start, block.size, size);
      block.size = size;
    }
    block.resident = ResidentWith(block, bytes);
    auto entry = mapped_.extract(start);
    entry.key() = block.start;
    entry.mapped() = block;
    mapped_.insert(std::move(entry));
    return block.start;
  }

  // See TrimColumn.
  void Trim(void* start, size_t used_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Block& block = mapped_.at(start);
    const size_t resident = RoundUp(BlockSize(used_bytes), kLargestPage);
    if (resident >= block.resident) return;
    madvise(static_cast<std::byte*>(start) + resident, block.size - resident, MADV_DONTNEED);
    block.resident = resident;
  }

  // Keeps a freed block, or gives it back to the system if the limit is reached.
  void Return(void* start, size_t bytes) {
    const size_t size = BlockSize(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    Block block{start, size, size};
    if (IsMapped(size)) block = mapped_.extract(start).mapped();
    kept_bytes_ += block.resident;
    kept_.push_back(block);
    Shrink(limit_bytes_);
  }

  void SetLimit(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    limit_bytes_ = bytes;
    Shrink(limit_bytes_);
  }

  void Release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Shrink(0);
  }

 private:
  static constexpr size_t kMaxKept = 1024;

  struct Block {
    void* start = nullptr;
    size_t size = 0;
    size_t resident = 0;  // pages exist at most in this many bytes from the start on
  };

  // Returns: the resident bytes of the block once its first `bytes` bytes have been written.
  static size_t ResidentWith(const Block& block, size_t bytes) {
    return std::max(block.resident, std::min(block.size, RoundUp(bytes, kHugePage)));
  }
  // Whether a column of `bytes` can use the block. Only mapped blocks record their size, so only they may be larger
  // than needed, and only if the surplus has no pages: the column would not count them.
  static bool Fits(const Block& block, size_t bytes) {
    if (!IsMapped(block.size)) return block.size == BlockSize(bytes);
    return block.size >= bytes && ResidentWith(block, bytes) <= bytes + bytes / 8 && IsMapped(BlockSize(bytes));
  }

  // Whether a column of `bytes` should rather take block a, which was freed before block b. The one with more of the
  // pages that the column will touch: a trimmed block has few, and is wanted by the next column that will be trimmed.
  // Else the smaller one, or the most recently freed one, which may still be in the cache.
  static bool IsBetter(const Block& a, const Block& b, size_t bytes) {
    const size_t pages_of_a = std::min(a.resident, bytes);
    const size_t pages_of_b = std::min(b.resident, bytes);
    return pages_of_a != pages_of_b ? pages_of_a > pages_of_b : a.size < b.size;
  }

  // Gives the least recently freed blocks back until at most `most_bytes` are kept.
  void Shrink(size_t most_bytes) {
    size_t gone = 0;
    while (gone < kept_.size() && (kept_bytes_ > most_bytes || kept_.size() - gone > kMaxKept)) {
      const Block& block = kept_[gone++];
      kept_bytes_ -= block.resident;
      IsMapped(block.size) ? void(munmap(block.start, block.size)) : Free(block.start);
    }
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(gone));
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> mapped_;  // blocks in use
  std::vector<Block> kept_;                  // the most recent last
  size_t kept_bytes_ = 0;
  size_t limit_bytes_ = kDefaultKeptColumnBytes;
};

KeptBlocks* shared_blocks = nullptr;  // set before Blocks() is called, or never

// Never destroyed, since columns with static storage may outlive any other static object.
KeptBlocks& Blocks() {
  static auto* const blocks = shared_blocks != nullptr ? shared_blocks : new KeptBlocks;
  return *blocks;
}

}  // namespace

void* AllocateColumn(size_t bytes) { return bytes < kSmallestKept ? Allocate(bytes) : Blocks().Take(bytes); }

void FreeColumn(void* memory, size_t bytes) noexcept {
  bytes < kSmallestKept ? Free(memory) : Blocks().Return(memory, bytes);
}

bool IsMappedColumn(size_t bytes) { return bytes >= kSmallestKept && IsMapped(BlockSize(bytes)); }

void* ExtendColumn(void* memory, size_t bytes) { return Blocks().Extend(memory, bytes); }

void* ColumnStore() { return &Blocks(); }
void ShareColumnStore(void* store) { shared_blocks = static_cast<KeptBlocks*>(store); }

bool TrimColumn(void* memory, size_t bytes, size_t used) noexcept {
  if (!IsMappedColumn(bytes)) return false;
  Blocks().Trim(memory, used);
  return true;
}

}  // namespace sparseagg::internal

namespace sparseagg {

void KeepFreedColumns(size_t bytes) { internal::Blocks().SetLimit(bytes); }
void ReleaseFreedColumns() { internal::Blocks().Release(); }

}  // namespace sparseagg
