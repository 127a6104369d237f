#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_select.cuh>

#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

cudaError_t SelectFlagged(SelectCall& call, cudaStream_t stream) {
  return cub::DeviceSelect::Flagged(call.d_scratch, call.scratch_bytes, thrust::counting_iterator<uint32_t>(0),
                                    call.d_flags, call.d_indices, call.d_num_selected, call.count, stream);
}

}  // namespace sparseagg::cuda
