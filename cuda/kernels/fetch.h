// Kernels in place of many small copies.
#ifndef SPARSEAGG_CUDA_KERNELS_FETCH_H_
#define SPARSEAGG_CUDA_KERNELS_FETCH_H_

#include <cstdint>

#include "cuda/kernels/number.h"

namespace sparseagg::cuda {

// Words of 4 bytes in a piece that one chunk copies at most.
inline constexpr uint32_t kFetchWords = 1024;

// Words [begin, end) of such a piece.
struct FetchChunk {
  const uint32_t* d_from = nullptr;  // word `begin`
  uint32_t* d_to = nullptr;
  uint16_t begin = 0;
  uint16_t end = 0;
};

// Element-wise over the words of all pieces: those of the chunks are copied, within the device or from pinned host
// memory. Threads follow the pieces, which are aligned, not the chunks, so that a warp reads one line of 128 bytes.
struct Fetch {
  const FetchChunk* d_chunks = nullptr;
  uint32_t num_chunks = 0;
  bool reads_host = false;  // some of it

  SPARSEAGG_HD uint64_t size() const { return uint64_t{num_chunks} * kFetchWords; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const FetchChunk chunk = d_chunks[i / kFetchWords];
    const auto word = static_cast<uint32_t>(i % kFetchWords);
    if (word >= chunk.begin && word < chunk.end) chunk.d_to[word - chunk.begin] = chunk.d_from[word - chunk.begin];
  }
};

// Element-wise over words, to or from pinned host memory.
struct CopyWords {
  const uint32_t* from = nullptr;
  uint32_t* to = nullptr;
  uint32_t count = 0;

  SPARSEAGG_HD uint64_t size() const { return count; }
  SPARSEAGG_HD void operator()(uint64_t i) const { to[i] = from[i]; }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_FETCH_H_
