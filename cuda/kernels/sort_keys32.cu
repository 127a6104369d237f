// Radix sort of 32-bit keys (launch.h), a file by itself so that it compiles in parallel.
#include "cuda/kernels/sort_keys.cuh"

namespace sparseagg::cuda {

cudaError_t SortKeys32(SortCall& call, int& output, cudaStream_t stream) {
  return SortKeys<uint32_t>(call, output, stream);
}

}  // namespace sparseagg::cuda
