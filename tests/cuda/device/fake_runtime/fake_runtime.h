// A CUDA runtime with one device, in host memory, whose work is done when it is asked for.
#ifndef SPARSEAGG_TESTS_CUDA_DEVICE_FAKE_RUNTIME_FAKE_RUNTIME_H_
#define SPARSEAGG_TESTS_CUDA_DEVICE_FAKE_RUNTIME_FAKE_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace sparseagg::testing {

struct FakeRuntime {
  int driver = 13000;
  int num_devices = 1;
  bool has_pools = true;
  size_t memory_bytes = size_t{1} << 30;

  uint64_t fail_at_call = 0;  // counted from 1; 0: never
  uint64_t fail_at_call_too = 0;
  cudaError_t error = cudaErrorUnknown;
  uint64_t hangs_at_call = ~uint64_t{0};  // from then on nothing is ever done by the time someone asks

  uint64_t num_calls = 0;
  int current_device = 0;
  cudaError_t last_error = cudaSuccess;
  int num_live = 0;  // memory, pools, streams, events that were made and not given back
  // Done by CUB, had it been CUB.
  uint64_t num_sorts_of_32_bits = 0;
  uint64_t num_sorts_of_64_bits = 0;
  uint64_t num_selects = 0;
  uint64_t num_trims = 0;   // of the pool
  bool all_pinned = false;  // host memory that others allocated
};

// What the runtime of this program goes by.
FakeRuntime& Runtime();

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_CUDA_DEVICE_FAKE_RUNTIME_FAKE_RUNTIME_H_
