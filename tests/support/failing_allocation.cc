#include "tests/support/failing_allocation.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();

std::atomic<size_t> smallest{kNever};  // allocations of fewer bytes do not count
std::atomic<long> left{0};
std::atomic<bool> has_failed{false};

}  // namespace

void* operator new(size_t bytes) {
  if (bytes >= smallest && left-- == 0) {
    has_failed = true;
    throw std::bad_alloc();
  }
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
// Sanitizers have one that does not call the other, and mind what memory comes from which.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace sparseagg::testing {

FailingAllocation::FailingAllocation(long before, size_t least_bytes) {
  has_failed = false;
  left = before;
  smallest = least_bytes;
}
FailingAllocation::~FailingAllocation() { smallest = kNever; }

bool FailingAllocation::failed() const { return has_failed; }

}  // namespace sparseagg::testing
