// Whether this machine's NVIDIA driver can run the CUDA that the engine was built with.
#ifndef SPARSEAGG_CUDA_DEVICE_DRIVER_CHECK_H_
#define SPARSEAGG_CUDA_DEVICE_DRIVER_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::cuda {

// `driver`: the CUDA version of the driver, as of cudaDriverGetVersion: 12040 for 12.4; 0: there is no driver.
// `runtime`: the CUDA version that the engine was built with, likewise. `release`: DriverRelease.
// A driver runs every minor version of its major version of CUDA, and all older ones.
// Errors: UNAVAILABLE: there is no driver, or it is too old; names the version found and the one needed.
absl::Status CheckDriver(int driver, int runtime, absl::string_view release);

// Returns: the driver's own version, such as "550.54.15", from the file of its kernel module; empty if it is not there.
std::string DriverRelease(const std::string& path = "/proc/driver/nvidia/version");

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_DRIVER_CHECK_H_
