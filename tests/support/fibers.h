// Device threads as fibers, for the strict executor.
#ifndef SPARSEAGG_TESTS_SUPPORT_FIBERS_H_
#define SPARSEAGG_TESTS_SUPPORT_FIBERS_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/random.h"

namespace sparseagg::testing {

// A place in a kernel where the threads of a block wait for each other.
struct BarrierSite {
  const char* file = "";
  int line = 0;
  bool operator==(const BarrierSite& other) const { return line == other.line && std::strcmp(file, other.file) == 0; }
};

std::string Name(const BarrierSite& site);

// Runs blocks of threads, each thread on a fiber of its own. A fiber runs until its next barrier; then another fiber of
// any of the blocks runs, in a random order drawn from the seed. So a thread that no barrier holds back runs ahead.
//
// The thread sanitizer sees each fiber as a thread. Switching from fiber to fiber synchronises nothing; only the start
// and the end of Run and the barriers do. So the sanitizer reports two accesses without a barrier in between as a race.
//
// Not thread-safe. Errors are std::logic_error, after which the object must not be used.
class Fibers {
 public:
  explicit Fibers(uint64_t seed);
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;
  ~Fibers();

  using Body = std::function<void(uint32_t block, uint32_t thread)>;
  // Runs body(block, thread) for all threads of all blocks, and returns when all have returned. All threads of a block
  // must reach the same barriers. Errors: two threads of a block wait at different barriers, or one has returned while
  // another waits, or all threads wait for a value that none of them writes. The message names the barriers.
  void Run(uint32_t num_blocks, uint32_t num_threads, const Body& body);

  // ---- for bodies ----

  // Waits for all threads of the block.
  void Barrier(BarrierSite site);
  // Lets other threads run. For loops that wait for a value in memory.
  void Yield();

  // ---- for tests of the tests ----

  // Makes barriers at `site` let all threads pass, as if the kernel had none there.
  void RemoveBarrier(BarrierSite site) { removed_ = site; }
  // The sites reached so far, without those that ended their block in every Run.
  std::vector<BarrierSite> InnerSites() const;

 private:
  struct Fiber;
  struct Block {
    // Two barriers take turns: a fast thread may arrive at one while a slow thread leaves the other.
    char barriers[2] = {};
    uint32_t first = 0;  // fiber
    uint32_t count = 0;
    BarrierSite last;  // barrier passed; none while has_last is false
    bool has_last = false;
  };

  static void Main(unsigned high, unsigned low);
  void SwitchTo(Fiber& fiber);
  void SwitchBack(Fiber& fiber);
  bool Release(uint32_t block);
  [[noreturn]] void Fail(const std::string& message);
  // The entry of the last barrier that a block passed.
  struct Reached {
    BarrierSite site;
    bool is_inner = false;  // another barrier of the block followed at least once
  };
  Reached& Note(const Block& block);

  Rng random_;
  std::unique_ptr<Fiber> main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Block> blocks_;
  Fiber* current_ = nullptr;
  const Body* body_ = nullptr;
  BarrierSite removed_;
  std::vector<Reached> reached_;
  // Addresses that stand for the start and the end of Run. Two, so that a fiber that starts late does not synchronise
  // with those that have ended.
  char start_ = 0;
  char end_ = 0;
};

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_FIBERS_H_
