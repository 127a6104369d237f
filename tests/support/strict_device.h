// A host device that runs kernels with the strict executor.
#ifndef SPARSEAGG_TESTS_SUPPORT_STRICT_DEVICE_H_
#define SPARSEAGG_TESTS_SUPPORT_STRICT_DEVICE_H_

#include <cstdint>
#include <memory>

#include "cuda/device/device.h"
#include "tests/support/fibers.h"

namespace sparseagg::testing {

// `seed`: of the torture of HostDevice and of the order of threads; not 0. `fibers`: set to the executor's fibers,
// which live as long as the device; may be null.
std::unique_ptr<cuda::Device> MakeStrictDevice(uint64_t seed, Fibers** fibers = nullptr);

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_STRICT_DEVICE_H_
