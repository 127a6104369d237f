// Runs kernel bodies on the host, one device thread after another.
#ifndef SPARSEAGG_TESTS_SUPPORT_HOST_EXECUTOR_H_
#define SPARSEAGG_TESTS_SUPPORT_HOST_EXECUTOR_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/kernels/block.h"

namespace sparseagg::cuda {

// Executes a kernel's threads in ascending order (`seed` 0) or in a random order drawn from `seed`. A correct kernel
// gives the same bits in every order. The random order steps through the indices by a stride coprime to their number,
// so it needs no memory. Not thread-safe. Because threads run one after another, a missing barrier cannot show here;
// tests/support/strict_executor.h is for that.
class HostExecutor {
 public:
  explicit HostExecutor(uint64_t seed) : shuffles_(seed != 0), random_(seed) {}

  // Runs an element-wise kernel: operator()(i) for all i below size().
  template <typename Kernel>
  void RunElements(const Kernel& kernel) {
    InSomeOrder(kernel.size(), [&kernel](uint64_t i) { kernel(i); });
  }

  // Runs a block kernel, block by block. Shared memory and the threads' own values are poisoned with 0xA5 before each
  // block.
  template <typename Kernel>
  void RunBlocks(const Kernel& kernel) {
    constexpr uint32_t kThreads = Kernel::kThreads;
    using Shared = typename Kernel::Shared;
    using Private = typename Kernel::Private;
    static_assert(std::is_trivially_copyable_v<Private>);
    static_assert(std::is_trivially_destructible_v<Shared> && sizeof(Shared) <= kMaxSharedBytes);
    const auto memory = std::make_unique<std::aligned_storage_t<sizeof(Shared), alignof(Shared)>>();
    std::vector<Private> own(kThreads);
    InSomeOrder(kernel.num_blocks(), [&](uint64_t index) {
      std::memset(memory.get(), 0xa5, sizeof(Shared));
      std::memset(static_cast<void*>(own.data()), 0xa5, own.size() * sizeof(Private));
      Block<Private> block{*this, index, kThreads, own.data()};
      kernel(block, *reinterpret_cast<Shared*>(memory.get()));
    });
  }

 private:
  template <typename Private>
  struct Block {
    HostExecutor& executor;
    uint64_t block_index;
    uint32_t threads;
    Private* own_values;

    uint64_t index() const { return block_index; }
    Private& own(uint32_t thread) { return own_values[thread]; }
    template <typename Body>
    void Phase(Body&& phase) {
      executor.InSomeOrder(threads, [&phase](uint64_t thread) { phase(static_cast<uint32_t>(thread)); });
    }
    template <typename Body>
    void Each(Body&& body) {
      Phase(body);
    }
    template <typename Give, typename Take>
    void ExclusiveSum(Give&& give, Take&& take) {
      std::vector<uint32_t>& sums = executor.sums_;
      sums.resize(threads + 1);
      Phase([&](uint32_t thread) { sums[thread] = give(thread); });
      uint32_t sum = 0;
      for (uint32_t& value : sums) sum += std::exchange(value, sum);
      Phase([&](uint32_t thread) { take(thread, sums[thread], sums[threads]); });
    }
    // Blocks run one after another, so what a block may wait for is there.
    uint64_t WaitFor(const uint64_t* d_value) const { return *d_value; }
  };

  template <typename Body>
  void InSomeOrder(uint64_t count, Body&& body) {
    if (!shuffles_ || count < 2) {
      for (uint64_t i = 0; i < count; ++i) body(i);
      return;
    }
    uint64_t stride = 1 + random_() % (count - 1);
    while (std::gcd(stride, count) != 1) stride = stride % count + 1;
    uint64_t at = random_() % count;
    for (uint64_t i = 0; i < count; ++i) {
      body(at);
      at += stride;
      if (at >= count) at -= count;
    }
  }

  const bool shuffles_;
  std::mt19937_64 random_;
  std::vector<uint32_t> sums_;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_TESTS_SUPPORT_HOST_EXECUTOR_H_
