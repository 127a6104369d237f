// Runs kernel bodies on the host with the concurrency that a device has.
#ifndef SPARSEAGG_TESTS_SUPPORT_STRICT_EXECUTOR_H_
#define SPARSEAGG_TESTS_SUPPORT_STRICT_EXECUTOR_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

#include "cuda/kernels/block.h"
#include "tests/support/fibers.h"
#include "tests/support/random.h"

namespace sparseagg::testing {

// An executor as cuda::HostExecutor, except that every device thread is a fiber (fibers.h). So the barriers of a kernel
// are real: without one of them threads run ahead, and the thread sanitizer reports a race. Two blocks are resident
// at a time. Each block has shared memory of its own, of the exact size and poisoned. Errors: of Fibers::Run.
class StrictExecutor {
 public:
  explicit StrictExecutor(uint64_t seed) : random_(seed), fibers_(seed) {}

  Fibers& fibers() { return fibers_; }

  template <typename Kernel>
  void RunElements(const Kernel& kernel) {
    const uint64_t size = kernel.size();
    const auto num_threads = static_cast<uint32_t>(std::min<uint64_t>(size, kElementThreads));
    fibers_.Run(1, num_threads, [&](uint32_t, uint32_t thread) {
      for (uint64_t i = thread; i < size; i += num_threads) kernel(i);
    });
  }

  template <typename Kernel>
  void RunBlocks(const Kernel& kernel) {
    using Shared = typename Kernel::Shared;
    using Memory = std::aligned_storage_t<sizeof(Shared), alignof(Shared)>;
    static_assert(std::is_trivially_destructible_v<Shared> && sizeof(Shared) <= cuda::kMaxSharedBytes);
    std::vector<uint64_t> order(kernel.num_blocks());
    std::iota(order.begin(), order.end(), uint64_t{0});
    random_.Shuffle(order);
    for (size_t first = 0; first < order.size(); first += kResidentBlocks) {
      const auto count = static_cast<uint32_t>(std::min<size_t>(order.size() - first, kResidentBlocks));
      std::vector<std::unique_ptr<Memory>> shared(count);
      std::vector<std::vector<uint32_t>> sums(count, std::vector<uint32_t>(Kernel::kThreads));
      for (std::unique_ptr<Memory>& memory : shared) {
        memory = std::make_unique<Memory>();
        std::memset(memory.get(), 0xa5, sizeof(Shared));
      }
      fibers_.Run(count, Kernel::kThreads, [&](uint32_t block, uint32_t thread) {
        Block<Kernel> view{fibers_, order[first + block], thread, sums[block].data()};
        kernel(view, *reinterpret_cast<Shared*>(shared[block].get()));
      });
    }
  }

 private:
  static constexpr uint32_t kElementThreads = 64;
  static constexpr size_t kResidentBlocks = 2;

  // A block as one of its threads sees it.
  template <typename Kernel>
  struct Block {
    using Private = typename Kernel::Private;
    Fibers& fibers;
    uint64_t block_index;
    uint32_t self;
    uint32_t* sums;  // one for each thread of the block
    Private own_values = {};

    uint64_t index() const { return block_index; }
    Private& own(uint32_t) { return own_values; }
    template <typename Body>
    void Phase(Body&& body, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
      body(self);
      fibers.Barrier({file, line});
    }
    template <typename Body>
    void Each(Body&& body) {
      body(self);
    }
    template <typename Give, typename Take>
    void ExclusiveSum(Give&& give, Take&& take, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
      sums[self] = give(self);
      fibers.Barrier({file, line});
      const uint32_t before = std::accumulate(sums, sums + self, 0u);
      take(self, before, std::accumulate(sums + self, sums + Kernel::kThreads, before));
      fibers.Barrier({file, line});
    }
    uint64_t WaitFor(const uint64_t* d_value) {
      while (true) {
        if (const uint64_t value = cuda::LoadRelaxed(d_value); value != 0) return value;
        fibers.Yield();
      }
    }
  };

  Rng random_;
  Fibers fibers_;
};

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_STRICT_EXECUTOR_H_
