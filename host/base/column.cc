#include "host/base/column.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sparseagg::internal {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = size_t{4} << 10;
constexpr size_t kHugePage = size_t{2} << 20;
// From here on memory is kept; from there on it is mapped, in huge pages.
constexpr size_t kSmallestKept = size_t{128} << 10;
constexpr size_t kSmallestMapped = 2 * kHugePage;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Kept blocks come in few sizes, so that one fits often, and at most an eighth is too much, since it is counted
// nowhere. So the tail of a mapped one may be too short for a huge page.
size_t BlockSize(size_t bytes) { return RoundUp(bytes, std::clamp(std::bit_floor(bytes) / 8, kPage, kHugePage)); }
bool IsMapped(size_t block_size) { return block_size >= kSmallestMapped; }

// Aligned by hand, since aligned allocations pass by the C library's caches of small blocks and take it several times
// as long. The byte before the memory says how far it was moved.
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
  // One huge page more than needed, so that the start can be aligned to one; the surplus is unmapped. Not NORESERVE:
  // the system refuses what is beyond all its memory, rather than end the process that touches it.
  size_t space = size + kHugePage;
  void* mapping = mmap(nullptr, space, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  void* start = mapping;
  std::align(kHugePage, size, start, space);  // leaves in `space` what lies from `start` to the mapping's end
  const size_t before = size + kHugePage - space;
  if (before > 0) munmap(mapping, before);
  if (space > size) munmap(static_cast<std::byte*>(start) + size, space - size);
  madvise(start, size, MADV_HUGEPAGE);  // a wish: without huge pages it works as well
  return start;
}

void* Move(void* start, size_t size, size_t larger) {
  void* const target = Map(larger);
  // Takes the place of what has been mapped there.
  if (mremap(start, size, larger, MREMAP_MAYMOVE | MREMAP_FIXED, target) != MAP_FAILED) return target;
  munmap(target, larger);
  throw std::bad_alloc();
}

class KeptBlocks;
KeptBlocks& Blocks();

// Keeps freed blocks for the next columns: fresh pages cost a merge up to a third of its time, since the system clears
// them at first touch. Thread-safe.
class KeptBlocks {
 public:
  KeptBlocks() {
    kept_.reserve(kMostKept + 1);  // so that to return one never takes memory
    // Held over a fork, the lock is free in the child.
    pthread_atfork([] { Blocks().mutex_.lock(); }, [] { Blocks().mutex_.unlock(); }, [] { Blocks().mutex_.unlock(); });
  }

  void* Take(size_t bytes) {
    const size_t size = BlockSize(bytes);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      size_t best = kept_.size();
      for (size_t i = 0; i < kept_.size(); ++i) {
        // Of equals the most recent one, which may still be in the cache.
        if (Fits(kept_[i], bytes) && (best == kept_.size() || kept_[i].size <= kept_[best].size)) best = i;
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

  void* Extend(void* start, size_t bytes) {
    // Held to the end: as soon as the pages have moved, another block may be mapped where they were.
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

  void Trim(void* start, size_t used_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Block& block = mapped_.at(start);
    const size_t resident = BlockSize(used_bytes);
    if (resident >= block.resident) return;
    madvise(static_cast<std::byte*>(start) + resident, block.size - resident, MADV_DONTNEED);
    block.resident = resident;
  }

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
  static constexpr size_t kMostKept = 1024;

  struct Block {
    void* start = nullptr;
    size_t size = 0;
    size_t resident = 0;  // at most so much of it, from the start on, has pages
  };

  // Once `bytes` of it have been written to.
  static size_t ResidentWith(const Block& block, size_t bytes) {
    return std::max(block.resident, std::min(block.size, RoundUp(bytes, kHugePage)));
  }
  // Only mapped blocks tell their size themselves. They may be larger, as far as no pages lie there: those would be
  // resident with a column that does not count them.
  static bool Fits(const Block& block, size_t bytes) {
    if (!IsMapped(block.size)) return block.size == BlockSize(bytes);
    return block.size >= bytes && ResidentWith(block, bytes) <= bytes + bytes / 8 && IsMapped(BlockSize(bytes));
  }

  // Those not needed for longest go first.
  void Shrink(size_t most_bytes) {
    size_t gone = 0;
    while (gone < kept_.size() && (kept_bytes_ > most_bytes || kept_.size() - gone > kMostKept)) {
      const Block& block = kept_[gone++];
      kept_bytes_ -= block.resident;
      IsMapped(block.size) ? void(munmap(block.start, block.size)) : Free(block.start);
    }
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(gone));
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> mapped_;  // in use
  std::vector<Block> kept_;                  // the most recent last
  size_t kept_bytes_ = 0;
  size_t limit_bytes_ = kDefaultKeptColumnBytes;
};

// Never destroyed: columns of static storage may outlive any other static object.
KeptBlocks& Blocks() {
  static auto* const blocks = new KeptBlocks;
  return *blocks;
}

}  // namespace

void* AllocateColumn(size_t bytes) { return bytes < kSmallestKept ? Allocate(bytes) : Blocks().Take(bytes); }

void FreeColumn(void* memory, size_t bytes) noexcept {
  bytes < kSmallestKept ? Free(memory) : Blocks().Return(memory, bytes);
}

bool IsMappedColumn(size_t bytes) { return bytes >= kSmallestKept && IsMapped(BlockSize(bytes)); }

void* ExtendColumn(void* memory, size_t bytes) { return Blocks().Extend(memory, bytes); }

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
