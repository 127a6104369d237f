// What a device's memory and its link to the host can do at best, measured in the run that quotes it.
#ifndef SPARSEAGG_BENCH_GPU_DEVICE_LIMITS_H_
#define SPARSEAGG_BENCH_GPU_DEVICE_LIMITS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "cuda/device/device.h"

namespace sparseagg::bench {

struct DeviceLimits {
  double copy_bytes_per_s = 0;  // within the device: bytes read plus bytes written
  double pinned_in_bytes_per_s = 0;
  double pageable_in_bytes_per_s = 0;
  double pinned_out_bytes_per_s = 0;
};

// Copies `bytes` several times in a row and takes the best of a few rows, each of which ends with a wait. The device
// must be entered.
absl::StatusOr<DeviceLimits> MeasureLimits(cuda::Device& device, size_t bytes);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_GPU_DEVICE_LIMITS_H_
