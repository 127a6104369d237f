// Memory that the copied keys of several updates share.
#ifndef SPARSEAGG_HOST_UPDATES_KEY_ARENA_H_
#define SPARSEAGG_HOST_UPDATES_KEY_ARENA_H_

#include <atomic>
#include <cstddef>

#include "host/base/column.h"

namespace sparseagg {

// One column from which each update of a batch takes a part for its keys (ValidatedUpdate::CreateWithCopiedKeys). The
// keys of one update are often too few for huge pages, and page faults on small pages cost as much time as the merge;
// those of a batch are enough. The updates own the arena together: its memory is released with the last of them.
// Thread-safe.
class KeyArena {
 public:
  // Throws std::bad_alloc.
  explicit KeyArena(size_t bytes) : memory_(bytes) {}

  // Returns: bytes of the arena that Take uses for `bytes`: parts begin at cache lines.
  static size_t BytesFor(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // Returns: uninitialised memory, aligned to 64; nullptr if fewer bytes are left.
  std::byte* Take(size_t bytes) {
    const size_t begin = used_.fetch_add(BytesFor(bytes), std::memory_order_relaxed);
    return begin <= memory_.size() && bytes <= memory_.size() - begin ? memory_.data() + begin : nullptr;
  }

 private:
  static constexpr size_t kAlignment = 64;

  Column<std::byte> memory_;
  std::atomic<size_t> used_{0};
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_UPDATES_KEY_ARENA_H_
