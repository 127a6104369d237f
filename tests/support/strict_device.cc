#include "tests/support/strict_device.h"

#include "tests/support/host_device.h"
#include "tests/support/run_kernel.h"
#include "tests/support/strict_executor.h"

namespace sparseagg::testing {

std::unique_ptr<cuda::Device> MakeStrictDevice(uint64_t seed, Fibers** fibers) {
  const auto executor = std::make_shared<StrictExecutor>(seed);
  if (fibers != nullptr) *fibers = &executor->fibers();
  cuda::HostDeviceOptions options;
  options.torture_seed = seed;
  options.all_pinned = seed % 4 < 2;
  options.run_kernel = [executor](const cuda::KernelCall& call) { cuda::RunKernel(call, *executor); };
  return std::make_unique<cuda::HostDevice>(options);
}

}  // namespace sparseagg::testing
