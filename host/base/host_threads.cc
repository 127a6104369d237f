#include "host/base/host_threads.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "host/base/float_environment.h"

namespace sparseagg {

void HostThreads::For(size_t count, const std::function<void(size_t)>& body) {
  if (count <= 1 || arena_.max_concurrency() == 1) {
    const DefaultFloatEnvironment environment;
    for (size_t i = 0; i < count; ++i) body(i);
    return;
  }
  arena_.execute([&] {
    tbb::parallel_for(size_t{0}, count, [&](size_t i) {
      const DefaultFloatEnvironment environment;  // workers have that of the thread that made the arena
      body(i);
    });
  });
}

void HostThreads::Copy(absl::Span<const CopyPiece> pieces, size_t part_bytes) {
  std::vector<size_t> begins;  // of the pieces, among all bytes
  begins.reserve(pieces.size());
  size_t total = 0;
  for (const CopyPiece& piece : pieces) {
    begins.push_back(total);
    total += piece.bytes;
  }
  For((total + part_bytes - 1) / part_bytes, [&](size_t part) {
    size_t at = part * part_bytes;
    const size_t end = std::min(total, at + part_bytes);
    size_t i = std::upper_bound(begins.begin(), begins.end(), at) - begins.begin() - 1;
    for (; at < end; ++i) {
      const size_t done = at - begins[i];
      const size_t bytes = std::min(pieces[i].bytes - done, end - at);
      if (bytes == 0) continue;  // an empty piece has no addresses
      std::memcpy(static_cast<std::byte*>(pieces[i].to) + done, static_cast<const std::byte*>(pieces[i].from) + done,
                  bytes);
      at += bytes;
    }
  });
}

}  // namespace sparseagg
