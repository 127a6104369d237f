// Work of several threads on host memory, outside a merge.
#ifndef SPARSEAGG_HOST_BASE_HOST_THREADS_H_
#define SPARSEAGG_HOST_BASE_HOST_THREADS_H_

#include <tbb/task_arena.h>

#include <cstddef>
#include <functional>

#include "absl/types/span.h"

namespace sparseagg {

// One piece of memory to copy.
struct CopyPiece {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

// Runs loops and copies on up to so many of oneTBB's threads, the calling one among them. Thread-safe.
class HostThreads {
 public:
  // `num_threads`: 0: one per core.
  explicit HostThreads(int num_threads)
      : arena_(num_threads > 0 ? num_threads : static_cast<int>(tbb::task_arena::automatic)) {}

  // Calls body(0), …, body(count - 1), in any order. Blocks: until all calls have returned. Throws what a call throws.
  void For(size_t count, const std::function<void(size_t)>& body);

  // Copies all pieces, whose targets do not overlap. A thread takes `part_bytes` (≥ 1) at a time: a part of a large
  // piece, or many small ones. Blocks: until all is copied.
  void Copy(absl::Span<const CopyPiece> pieces, size_t part_bytes);

 private:
  tbb::task_arena arena_;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_HOST_THREADS_H_
