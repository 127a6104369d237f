// From keys in any order to segments of equal keys.
#ifndef SPARSEAGG_CUDA_SORTER_H_
#define SPARSEAGG_CUDA_SORTER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "cuda/device_memory.h"
#include "cuda/kernels/segments.h"
#include "cuda/session.h"

namespace sparseagg::cuda {

// Sorted keys, where each one came from, and where each segment begins.
struct SortedKeys {
  uint32_t count = 0;
  DeviceBuffer d_keys;
  DeviceBuffer d_positions;
  DeviceBuffer d_begin;
  uint32_t num_segments = 0;

  Segments segments() const { return {d_positions.as<uint32_t>(), d_begin.as<uint32_t>(), num_segments, count}; }
};

// Sorts `count` keys, stably, on their low `key_bits`, in two steps: Start asks for everything, Finish blocks until
// the number of segments is known. Stable, so positions ascend within a segment: run-to-run and GPU-to-GPU the same.
class Sorter {
 public:
  static absl::StatusOr<Sorter> Start(Session& session, DeviceBuffer d_keys, uint32_t count, uint32_t key_bytes,
                                      int key_bits);
  absl::StatusOr<SortedKeys> Finish(Session& session) &&;

 private:
  SortedKeys sorted_;
  Session::PendingSelection heads_;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_SORTER_H_
