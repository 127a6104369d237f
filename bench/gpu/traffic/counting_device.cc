// Compiled with -fsanitize=thread, so that every access of a kernel is counted (access_counter.cc).
#include "bench/gpu/traffic/counting_device.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "bench/gpu/traffic/access_counter.h"
#include "cuda/device/host_device.h"
#include "cuda/device/run_kernel.h"
#include "cuda/kernels/block.h"

namespace sparseagg::bench {
namespace {

using cuda::kBlockThreads;

// Runs threads in ascending order. Arguments, shared memory and the threads' own values are on the stack, which is not
// counted.
class CountingExecutor {
 public:
  template <typename Kernel>
  void RunElements(const Kernel& arguments) {
    const Kernel kernel = arguments;
    const uint64_t size = kernel.size();
    for (uint64_t first = 0; first < size; first += kBlockThreads) {
      BeginBlock();
      const uint64_t end = std::min<uint64_t>(size, first + kBlockThreads);
      for (uint64_t i = first; i < end; ++i) kernel(i);
    }
  }

  template <typename Kernel>
  void RunBlocks(const Kernel& arguments) {
    const Kernel kernel = arguments;
    for (uint64_t index = 0; index < kernel.num_blocks(); ++index) {
      BeginBlock();
      alignas(16) unsigned char memory[sizeof(typename Kernel::Shared)];
      Block<Kernel> block;
      block.block_index = index;
      kernel(block, *reinterpret_cast<typename Kernel::Shared*>(memory));
    }
  }

 private:
  template <typename Kernel>
  struct Block {
    using Private = typename Kernel::Private;
    static constexpr uint32_t kThreads = Kernel::kThreads;

    uint64_t block_index = 0;
    std::array<Private, kThreads> own_values;
    std::array<uint32_t, kThreads> sums;

    uint64_t index() const { return block_index; }
    uint32_t num_threads() const { return kThreads; }
    Private& own(uint32_t thread) { return own_values[thread]; }
    template <typename Body>
    void Phase(Body&& body) {
      for (uint32_t thread = 0; thread < kThreads; ++thread) body(thread);
    }
    template <typename Body>
    void Each(Body&& body) {
      Phase(body);
    }
    template <typename Give, typename Take>
    void ExclusiveSum(Give&& give, Take&& take) {
      uint32_t total = 0;
      Phase([&](uint32_t thread) {
        sums[thread] = total;
        total += give(thread);
      });
      Phase([&](uint32_t thread) { take(thread, sums[thread], total); });
    }
    uint64_t WaitFor(const uint64_t* d_value) const { return cuda::LoadRelaxed(d_value); }
  };
};

class CountingDevice : public cuda::HostDevice {
 public:
  CountingDevice() : HostDevice(Options()) {}

  absl::Status Fill(void* d_memory, uint8_t byte, size_t bytes, cuda::Lane lane) override {
    AddTraffic({0, bytes});
    return HostDevice::Fill(d_memory, byte, bytes, lane);
  }
  absl::Status CopyWithin(void* d_to, const void* d_from, size_t bytes, cuda::Lane lane) override {
    AddTraffic({bytes, bytes});
    return HostDevice::CopyWithin(d_to, d_from, bytes, lane);
  }
  absl::StatusOr<int> Sort(const cuda::SortCall& call) override {
    const uint64_t passes = (call.end_bit + 7) / 8;
    const uint64_t pair_bytes = call.key_bytes + sizeof(uint32_t);
    AddTraffic({call.count * (call.key_bytes + passes * pair_bytes), call.count * passes * pair_bytes});
    return HostDevice::Sort(call);
  }
  absl::Status Select(const cuda::SelectCall& call) override {
    absl::Status status = HostDevice::Select(call);
    const uint64_t bytes = call.d_flags == nullptr ? call.key_bytes : sizeof(*call.d_flags);
    AddTraffic({call.count * bytes, *call.d_num_selected * sizeof(uint32_t)});
    return status;
  }

 private:
  static cuda::HostDeviceOptions Options() {
    cuda::HostDeviceOptions options;
    options.run_kernel = [](const cuda::KernelCall& call) {
      CountingExecutor executor;
      cuda::RunKernel(call, executor);
    };
    return options;
  }
};

}  // namespace

std::unique_ptr<cuda::Device> MakeCountingDevice() { return std::make_unique<CountingDevice>(); }

}  // namespace sparseagg::bench
