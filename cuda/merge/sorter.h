// Sorter: sorts keys on the device and finds the segments of equal keys.
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
  DeviceBuffer d_begin;
  uint32_t num_segments = 0;

  Segments segments() const { return {d_positions.as<uint32_t>(), d_begin.as<uint32_t>(), num_segments, count}; }
};

// Sorts keys by their low `key_bits`. Two steps: Start launches all work; Finish blocks until the number of segments is
// known. Deterministic: the sort is stable, so positions ascend within a segment, on every run and every GPU.
class Sorter {
 public:
  // `d_carried`: values of 4 bytes to sort with the keys, in place of their positions, so that nothing has to gather
  // them later; may be empty.
  static absl::StatusOr<Sorter> Start(Session& session, DeviceBuffer d_keys, uint32_t count, uint32_t key_bytes,
                                      int key_bits, DeviceBuffer d_carried = DeviceBuffer());
  absl::StatusOr<SortedKeys> Finish(Session& session) &&;

 private:
  SortedKeys sorted_;
  Session::PendingSelection heads_;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_SORTER_H_
