// The compiler calls the functions below for each access to memory of a source that is compiled with -fsanitize=thread.
// The program is not linked with the thread sanitizer, whose functions these are otherwise.
#include "bench/gpu/traffic/access_counter.h"

#include <pthread.h>

#include <array>
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <utility>

namespace sparseagg::bench {
namespace {

constexpr uintptr_t kChunkBytes = uintptr_t{2} << 20;

// The number of the last block that read, and that wrote, each sector of a range of memory.
struct Chunk {
  std::array<uint32_t, kChunkBytes / kSectorBytes> read = {};
  std::array<uint32_t, kChunkBytes / kSectorBytes> written = {};
};

struct Counter {
  bool is_counting = false;
  uintptr_t stack_begin = 0;
  uintptr_t stack_end = 0;
  uint32_t block = 1;
  Traffic traffic;
  std::unordered_map<uintptr_t, std::unique_ptr<Chunk>> chunks;
  uintptr_t last_chunk = ~uintptr_t{0};
  Chunk* last = nullptr;

  Chunk& ChunkOf(uintptr_t sector) {
    const uintptr_t index = sector * kSectorBytes / kChunkBytes;
    if (index != last_chunk) {
      std::unique_ptr<Chunk>& chunk = chunks[index];
      if (chunk == nullptr) chunk = std::make_unique<Chunk>();
      last = chunk.get();
      last_chunk = index;
    }
    return *last;
  }
};

Counter& TheCounter() {
  static Counter counter;
  return counter;
}

bool is_counting = false;

void Count(const void* address, size_t bytes, bool is_write) {
  if (!is_counting) return;
  Counter& counter = TheCounter();
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin >= counter.stack_begin && begin < counter.stack_end) return;
  for (uintptr_t sector = begin / kSectorBytes; sector <= (begin + bytes - 1) / kSectorBytes; ++sector) {
    Chunk& chunk = counter.ChunkOf(sector);
    uint32_t& block = (is_write ? chunk.written : chunk.read)[sector % (kChunkBytes / kSectorBytes)];
    if (block == counter.block) continue;
    block = counter.block;
    (is_write ? counter.traffic.written_bytes : counter.traffic.read_bytes) += kSectorBytes;
  }
}

template <typename T>
T CountUpdate(volatile T* address) {
  Count(const_cast<const T*>(address), sizeof(T), false);
  Count(const_cast<const T*>(address), sizeof(T), true);
  return *address;
}

}  // namespace

void StartCounting() {
  Counter& counter = TheCounter();
  pthread_attr_t attributes;
  void* stack = nullptr;
  size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &stack, &bytes);
    pthread_attr_destroy(&attributes);
  }
  counter.stack_begin = reinterpret_cast<uintptr_t>(stack);
  counter.stack_end = counter.stack_begin + bytes;
  counter.traffic = {};
  BeginBlock();
  is_counting = true;
}

Traffic TakeTraffic() { return std::exchange(TheCounter().traffic, {}); }

void BeginBlock() { ++TheCounter().block; }

void AddTraffic(const Traffic& traffic) {
  if (!is_counting) return;
  TheCounter().traffic.read_bytes += traffic.read_bytes;
  TheCounter().traffic.written_bytes += traffic.written_bytes;
}

}  // namespace sparseagg::bench

using sparseagg::bench::Count;
using sparseagg::bench::CountUpdate;

// NOLINTBEGIN(bugprone-reserved-identifier): the compiler's names
extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

void __tsan_read1(void* address) { Count(address, 1, false); }
void __tsan_read2(void* address) { Count(address, 2, false); }
void __tsan_read4(void* address) { Count(address, 4, false); }
void __tsan_read8(void* address) { Count(address, 8, false); }
void __tsan_read16(void* address) { Count(address, 16, false); }
void __tsan_write1(void* address) { Count(address, 1, true); }
void __tsan_write2(void* address) { Count(address, 2, true); }
void __tsan_write4(void* address) { Count(address, 4, true); }
void __tsan_write8(void* address) { Count(address, 8, true); }
void __tsan_write16(void* address) { Count(address, 16, true); }
void __tsan_read_range(void* address, size_t bytes) { Count(address, bytes, false); }
void __tsan_write_range(void* address, size_t bytes) { Count(address, bytes, true); }

uint8_t __tsan_atomic8_load(const volatile uint8_t* from, int) { return *from; }
void __tsan_atomic8_store(volatile uint8_t* to, uint8_t value, int) {
  CountUpdate(to);
  *to = value;
}
void __tsan_atomic32_store(volatile uint32_t* to, uint32_t value, int) {
  CountUpdate(to);
  *to = value;
}
void __tsan_atomic64_store(volatile uint64_t* to, uint64_t value, int) {
  CountUpdate(to);
  *to = value;
}
uint32_t __tsan_atomic32_load(const volatile uint32_t* from, int) {
  Count(const_cast<const uint32_t*>(from), sizeof(*from), false);
  return *from;
}
uint64_t __tsan_atomic64_load(const volatile uint64_t* from, int) {
  Count(const_cast<const uint64_t*>(from), sizeof(*from), false);
  return *from;
}
uint32_t __tsan_atomic32_fetch_add(volatile uint32_t* to, uint32_t value, int) {
  const uint32_t before = CountUpdate(to);
  *to = before + value;
  return before;
}
uint32_t __tsan_atomic32_fetch_or(volatile uint32_t* to, uint32_t value, int) {
  const uint32_t before = CountUpdate(to);
  *to = before | value;
  return before;
}
int __tsan_atomic32_compare_exchange_weak(volatile uint32_t* to, uint32_t* expected, uint32_t value, int, int) {
  CountUpdate(to);
  if (*to != *expected) {
    *expected = *to;
    return 0;
  }
  *to = value;
  return 1;
}
int __tsan_atomic64_compare_exchange_weak(volatile uint64_t* to, uint64_t* expected, uint64_t value, int, int) {
  CountUpdate(to);
  if (*to != *expected) {
    *expected = *to;
    return 0;
  }
  *to = value;
  return 1;
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
