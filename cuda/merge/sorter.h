// Sorts keys on the device and finds the segments of equal keys.
#ifndef SPARSEAGG_CUDA_MERGE_SORTER_H_
#define SPARSEAGG_CUDA_MERGE_SORTER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "cuda/device/device.h"
#include "cuda/kernels/segments.h"
#include "cuda/transfer/session.h"

namespace sparseagg::cuda {

// Sorted keys, the position that each came from, and the index where each segment of equal keys starts.
struct SortedKeys {
  uint32_t count = 0;
  DeviceBuffer d_keys;
  DeviceBuffer d_positions;  // empty if values were carried: sorted values then replace positions
  DeviceBuffer d_values;     // carried values, in the order of the keys; else empty
  Session::Selection heads;  // the index of the first key of each segment

  Segments segments() const { return {d_positions.as<uint32_t>(), heads.d_indices.as<uint32_t>(), heads.count, count}; }
};

// Launches all work that sorts keys by their low `key_bits` and finds their segments; the number of segments is known
// after Session::FinishSelect of the heads. `d_carried`: values of 4 bytes to sort with the keys, in place of their
// positions, so that nothing has to gather them later; may be empty. Deterministic: the sort is stable, so positions
// ascend within a segment, on every run and every GPU.
absl::StatusOr<SortedKeys> StartSort(Session& session, DeviceBuffer d_keys, uint32_t count, uint32_t key_bytes,
                                     int key_bits, DeviceBuffer d_carried = DeviceBuffer());

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_SORTER_H_
