// Runs kernel bodies on the host, one thread of the grid after another.
#ifndef SPARSEAGG_CUDA_HOST_EXECUTOR_H_
#define SPARSEAGG_CUDA_HOST_EXECUTOR_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>

#include "cuda/kernels/block.h"

namespace sparseagg::cuda {

// In ascending order when `seed` is 0, else in an order drawn from it: correct bodies give the same bits in any. That
// order steps through the indices by a random stride, so it needs no memory.
class HostExecutor {
 public:
  explicit HostExecutor(uint64_t seed) : shuffles_(seed != 0), random_(seed) {}

  // operator()(i) of an element-wise kernel for all i.
  template <typename Kernel>
  void RunElements(const Kernel& kernel) {
    InSomeOrder(kernel.size(), [&kernel](uint64_t i) { kernel(i); });
  }

  // A block kernel; shared memory starts out as rubbish.
  template <typename Kernel>
  void RunBlocks(const Kernel& kernel, uint32_t num_threads = kBlockThreads) {
    using Shared = typename Kernel::Shared;
    static_assert(std::is_trivially_destructible_v<Shared> && sizeof(Shared) <= kMaxSharedBytes);
    const auto memory = std::make_unique<std::aligned_storage_t<sizeof(Shared), alignof(Shared)>>();
    InSomeOrder(kernel.num_blocks(), [&](uint64_t index) {
      std::memset(memory.get(), 0xa5, sizeof(Shared));
      Block block{*this, index, num_threads};
      kernel(block, *reinterpret_cast<Shared*>(memory.get()));
    });
  }

 private:
  struct Block {
    HostExecutor& executor;
    uint64_t block_index;
    uint32_t threads;

    uint64_t index() const { return block_index; }
    uint32_t num_threads() const { return threads; }
    template <typename Body>
    void Phase(Body&& phase) {
      executor.InSomeOrder(threads, [&phase](uint64_t thread) { phase(static_cast<uint32_t>(thread)); });
    }
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
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_HOST_EXECUTOR_H_
