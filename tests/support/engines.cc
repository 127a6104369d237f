#include "tests/support/engines.h"

#include <utility>

#include "cuda/cuda_engine.h"
#include "cuda/device_engine.h"
#include "host/cpu/cpu_engine.h"
#include "host/cpu/simd/kernels.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"

namespace sparseagg::testing {

cuda::Tuning TinyTuning() {
  cuda::Tuning tuning;
  tuning.staging_buffer_bytes = 256;
  tuning.num_staging_buffers = 2;
  tuning.max_pinned_bytes = 100'000;
  tuning.min_pinned_bytes = 100;
  tuning.copy_part_bytes = 64;
  tuning.min_resident_bytes = 200;
  tuning.min_copy_bytes = 100;
  tuning.min_copy_within_bytes = 100;
  tuning.slab_bytes = 600;
  tuning.min_slab_run = 1;
  tuning.max_batch_entries = 1'000'000;
  tuning.medium_segment = 2;
  tuning.long_segment = 8;
  tuning.min_pending_bytes = 1000;
  tuning.min_tile_tuples = 0;
  tuning.min_tile_run = 0;
  tuning.min_matrix_tuples = 1;
  return tuning;
}

std::unique_ptr<Engine> TortureEngine(uint64_t seed, bool tiles, int num_devices) {
  cuda::DeviceEngineOptions options;
  options.tuning = TinyTuning();
  if (!tiles) options.tuning.min_tile_tuples = 1e300;
  if (num_devices == 1) options.tuning.min_matrix_tuples = UINT32_MAX;  // tiles are sorted
  std::vector<std::unique_ptr<cuda::Device>> devices;
  for (int i = 0; i < num_devices; ++i) {
    devices.push_back(std::make_unique<cuda::HostDevice>(
        cuda::HostDeviceOptions{.torture_seed = seed + static_cast<uint64_t>(i), .ordinal = i, .all_pinned = tiles}));
  }
  return std::make_unique<cuda::DeviceEngine>(std::move(devices), options);
}

absl::Status CudaStatus() {
  absl::StatusOr<std::unique_ptr<Engine>> engine = cuda::CreateCudaEngine();
  if (!engine.ok()) return engine.status();
  return (*engine)->Probe();
}

namespace {

// The SIMD target stays in force until the next engine is made: for the whole test that makes this one.
std::unique_ptr<Engine> ForcedEngine(const std::string& target, int num_threads) {
  const absl::Status status = cpu::ForceSimdTarget(target);
  return status.ok() ? CreateCpuEngine({.num_threads = num_threads}) : nullptr;
}

}  // namespace

std::vector<EngineCase> AvailableEngines() {
  std::vector<EngineCase> engines;
  for (const int num_threads : {1, 4}) {
    engines.push_back({"cpu" + std::to_string(num_threads), [num_threads] { return ForcedEngine("", num_threads); }});
  }
  // All SIMD targets of the machine but the best. Not in the sanitizers' builds, which are ten times as slow.
#ifndef SPARSEAGG_TINY_BLOCKS
  const std::vector<std::string> targets = cpu::SimdTargets();
  for (size_t i = 1; i < targets.size(); ++i) {
    engines.push_back({"cpu" + targets[i], [target = targets[i]] { return ForcedEngine(target, 1); }});
  }
#endif
  // The CUDA engine over a device in host memory tests everything but the driver, CUB and true concurrency. Once with
  // the sizes of a real device, but it merges on arrival sooner, so that few updates see several merges; and once for
  // each path with tiny sizes in torture mode.
  cuda::DeviceEngineOptions real_sizes;
  real_sizes.tuning.min_pending_bytes = size_t{2} << 20;
#ifndef SPARSEAGG_TINY_BLOCKS
  engines.push_back({"cudahost", [real_sizes] {
                       return std::make_unique<cuda::DeviceEngine>(std::make_unique<cuda::HostDevice>(), real_sizes);
                     }});
  engines.push_back({"cudasort", [] { return TortureEngine(TestSeed(2026), /*tiles=*/false); }, true});
  for (const int num_devices : {2, 3}) {
    engines.push_back({"cudadevices" + std::to_string(num_devices),
                       [num_devices] { return TortureEngine(TestSeed(2028), /*tiles=*/num_devices == 2, num_devices); },
                       true});
  }
  engines.push_back({"cudatiles", [] { return TortureEngine(TestSeed(2027), /*tiles=*/true); }, true});
#endif
  if (CudaStatus().ok()) {
    // With little pinned memory, since that is slow to allocate and the contract suite makes a thousand engines.
    engines.push_back({"cuda", [options = real_sizes]() mutable {
                         options.tuning.staging_buffer_bytes = size_t{64} << 10;
                         return std::make_unique<cuda::DeviceEngine>(*cuda::CreateCudaDevice(), options);
                       }});
    // Small inputs reach long segments, parts of tiles and many batches only with tiny sizes.
    for (const bool tiles : {false, true}) {
      engines.push_back({tiles ? "cudatinytiles" : "cudatinysort",
                         [tiles] {
                           cuda::DeviceEngineOptions options;
                           options.tuning = TinyTuning();
                           if (!tiles) options.tuning.min_tile_tuples = 1e300;
                           return std::make_unique<cuda::DeviceEngine>(*cuda::CreateCudaDevice(), options);
                         },
                         true});
    }
  }
  return engines;
}

}  // namespace sparseagg::testing
