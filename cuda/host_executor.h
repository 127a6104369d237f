// Runs kernel bodies on the host, one device thread after another.
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

// Executes a kernel's threads in ascending order (`seed` 0) or in a random order drawn from `seed`. A correct kernel
// gives the same bits in every order. The random order steps through the indices by a stride coprime to their number,
// so it needs no memory. Not thread-safe. Because threads run one after another, a missing barrier cannot show here.
class HostExecutor {
 public:
  explicit HostExecutor(uint64_t seed) : shuffles_(seed != 0), random_(seed) {}

  // Runs an element-wise kernel: operator()(i) for all i below size().
  template <typename Kernel>
  void RunElements(const Kernel& kernel) {
    InSomeOrder(kernel.size(), [&kernel](uint64_t i) { kernel(i); });
  }

  // Runs a block kernel, block by block. Shared memory is poisoned with 0xA5 before each block.
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
