#include "host/column.h"

#include <sys/mman.h>

#include <cstdint>
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
  void* mapping =
      mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  const uintptr_t aligned = RoundUp(address, kHugePage);
  if (aligned > address) munmap(mapping, aligned - address);
  const size_t behind = address + kHugePage - aligned;
  if (behind > 0) munmap(reinterpret_cast<void*>(aligned + size), behind);
  madvise(reinterpret_cast<void*>(aligned), size, MADV_HUGEPAGE);  // a wish: without huge pages it works as well
  return reinterpret_cast<void*>(aligned);
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
