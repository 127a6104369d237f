#include "host/column.h"

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>

namespace sparseagg::internal {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 64;

bool IsMapped(size_t bytes) { return bytes >= 2 * kHugePage; }

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void* AllocateColumn(size_t bytes) {
  if (!IsMapped(bytes)) return ::operator new (bytes, std::align_val_t{kAlignment});
  // One huge page more than needed, so that the start can be aligned to one; the surplus is unmapped.
  const size_t size = RoundUp(bytes, kHugePage);
  size_t space = size + kHugePage;
  void* mapping = mmap(nullptr, space, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  void* start = mapping;
  std::align(kHugePage, size, start, space);  // leaves in `space` what lies from `start` to the mapping's end
  const size_t before = size + kHugePage - space;
  if (before > 0) munmap(mapping, before);
  if (space > size) munmap(static_cast<std::byte*>(start) + size, space - size);
  madvise(start, size, MADV_HUGEPAGE);  // a wish: without huge pages it works as well
  return start;
}

void FreeColumn(void* memory, size_t bytes) noexcept {
  if (!IsMapped(bytes)) {
    ::operator delete (memory, std::align_val_t{kAlignment});
  } else {
    munmap(memory, RoundUp(bytes, kHugePage));
  }
}

void TrimColumn(void* memory, size_t bytes, size_t used) noexcept {
  if (!IsMapped(bytes)) return;
  const size_t size = RoundUp(bytes, kHugePage);
  const size_t kept = RoundUp(used, 4096);
  if (kept < size) madvise(static_cast<char*>(memory) + kept, size - kept, MADV_DONTNEED);
}

}  // namespace sparseagg::internal
