// Radix sort of 64-bit keys (launch.h), a file by itself so that it compiles in parallel.
#include "cuda/kernels/sort_keys.cuh"

namespace sparseagg::cuda {

cudaError_t SortKeys64(SortCall& call, int& output, cudaStream_t stream) {
  return SortKeys<uint64_t>(call, output, stream);
}

}  // namespace sparseagg::cuda
