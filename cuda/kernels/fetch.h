// Kernels that read and write pinned host memory themselves, in place of many small copies.
#ifndef SPARSEAGG_CUDA_KERNELS_FETCH_H_
#define SPARSEAGG_CUDA_KERNELS_FETCH_H_

#include <cstdint>

#include "cuda/kernels/number.h"

namespace sparseagg::cuda {

// A page of host memory, in words of 4 bytes.
inline constexpr uint32_t kFetchWords = 1024;

// Words [begin, end) of a page.
struct FetchChunk {
  const uint32_t* from = nullptr;  // word `begin`, in pinned host memory
  uint32_t* d_to = nullptr;        // its place on the device
  uint16_t begin = 0;
  uint16_t end = 0;
};

// Element-wise over the words of all pages: those of the chunks are copied. Threads follow the pages, not the chunks,
// so that a warp reads one aligned line of 128 bytes: the link then moves whole lines.
struct Fetch {
  const FetchChunk* d_chunks = nullptr;
  uint32_t num_chunks = 0;

  SPARSEAGG_HD uint64_t size() const { return uint64_t{num_chunks} * kFetchWords; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const FetchChunk chunk = d_chunks[i / kFetchWords];
    const auto word = static_cast<uint32_t>(i % kFetchWords);
    if (word >= chunk.begin && word < chunk.end) chunk.d_to[word - chunk.begin] = chunk.from[word - chunk.begin];
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
