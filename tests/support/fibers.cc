// Compiled without the thread sanitizer, which would take the scheduling itself for races.
#include "tests/support/fibers.h"

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <stdexcept>

#include "absl/strings/str_cat.h"

// Of the sanitizers' runtimes; null in programs without them.
extern "C" {
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_acquire(void* address);
__attribute__((weak)) void __tsan_release(void* address);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
}

namespace sparseagg::testing {
namespace {

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr unsigned kNoSynchronisation = 1;  // __tsan_switch_to_fiber_no_sync
// Rounds in which threads do nothing but wait for a value, after which none of them ever will.
constexpr int kMaxIdleRounds = 1000;

enum class State { kReady, kWaiting, kYielding, kDone };

void Acquire(char* address) {
  if (__tsan_acquire != nullptr) __tsan_acquire(address);
}
void ReleaseAt(char* address) {
  if (__tsan_release != nullptr) __tsan_release(address);
}

}  // namespace

std::string Name(const BarrierSite& site) {
  const std::string file = site.file;
  return absl::StrCat(file.substr(file.rfind('/') + 1), ":", site.line);
}

struct Fibers::Fiber {
  ucontext_t context = {};
  std::unique_ptr<std::byte[]> stack;
  const void* stack_bottom = nullptr;
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // of the address sanitizer
  void* tsan = nullptr;
  Fibers* owner = nullptr;
  State state = State::kDone;
  uint32_t block = 0;
  uint32_t thread = 0;
  BarrierSite site;
  uint32_t num_barriers = 0;
};

Fibers::Fibers(uint64_t seed) : random_(seed), main_(std::make_unique<Fiber>()) {
  if (__tsan_get_current_fiber != nullptr) main_->tsan = __tsan_get_current_fiber();
}

Fibers::~Fibers() {
  for (const auto& fiber : fibers_) {
    if (fiber->tsan != nullptr) __tsan_destroy_fiber(fiber->tsan);
  }
}

// A fiber's whole life: it runs a body each time that Run makes it ready.
void Fibers::Main(unsigned high, unsigned low) {
  auto& fiber = *reinterpret_cast<Fiber*>(static_cast<uintptr_t>(high) << 32 | low);
  Fibers& fibers = *fiber.owner;
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(nullptr, &fibers.main_->stack_bottom, &fibers.main_->stack_bytes);
  }
  while (true) {
    Acquire(&fibers.start_);
    (*fibers.body_)(fiber.block, fiber.thread);
    ReleaseAt(&fibers.end_);
    fiber.state = State::kDone;
    fibers.SwitchBack(fiber);
  }
}

void Fibers::SwitchTo(Fiber& fiber) {
  current_ = &fiber;
  if (fiber.tsan != nullptr) __tsan_switch_to_fiber(fiber.tsan, kNoSynchronisation);
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&main_->fake_stack, fiber.stack.get(), kStackBytes);
  }
  swapcontext(&main_->context, &fiber.context);
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(main_->fake_stack, nullptr, nullptr);
  }
  current_ = nullptr;
}

void Fibers::SwitchBack(Fiber& fiber) {
  if (fiber.tsan != nullptr) __tsan_switch_to_fiber(main_->tsan, kNoSynchronisation);
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&fiber.fake_stack, main_->stack_bottom, main_->stack_bytes);
  }
  swapcontext(&fiber.context, &main_->context);
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &main_->stack_bottom, &main_->stack_bytes);
  }
}

void Fibers::Barrier(BarrierSite site) {
  if (site == removed_) return;
  Fiber& fiber = *current_;
  char* const barrier = &blocks_[fiber.block].barriers[fiber.num_barriers++ % 2];
  fiber.site = site;
  fiber.state = State::kWaiting;
  ReleaseAt(barrier);
  SwitchBack(fiber);
  Acquire(barrier);
}

void Fibers::Yield() {
  current_->state = State::kYielding;
  ReleaseAt(&end_);  // for Fail
  SwitchBack(*current_);
}

void Fibers::Run(uint32_t num_blocks, uint32_t num_threads, const Body& body) {
  while (fibers_.size() < size_t{num_blocks} * num_threads) {
    auto fiber = std::make_unique<Fiber>();
    fiber->owner = this;
    fiber->stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    if (__tsan_create_fiber != nullptr) fiber->tsan = __tsan_create_fiber(0);
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    const auto address = reinterpret_cast<uintptr_t>(fiber.get());
    makecontext(&fiber->context, reinterpret_cast<void (*)()>(&Fibers::Main), 2, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address));
    fibers_.push_back(std::move(fiber));
  }
  body_ = &body;
  blocks_.assign(num_blocks, Block());
  std::vector<uint32_t> order(num_blocks * num_threads);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = 0; i < order.size(); ++i) {
    Fiber& fiber = *fibers_[i];
    fiber.block = i / num_threads;
    fiber.thread = i % num_threads;
    fiber.num_barriers = 0;
    fiber.state = State::kReady;
  }
  for (uint32_t block = 0; block < num_blocks; ++block) {
    blocks_[block].first = block * num_threads;
    blocks_[block].count = num_threads;
  }
  ReleaseAt(&start_);
  uint32_t num_done = 0;
  int idle_rounds = 0;
  while (num_done < order.size()) {
    bool is_idle = true;
    random_.Shuffle(order);
    for (const uint32_t i : order) {
      Fiber& fiber = *fibers_[i];
      if (fiber.state != State::kReady && fiber.state != State::kYielding) continue;
      SwitchTo(fiber);
      num_done += fiber.state == State::kDone ? 1 : 0;
      is_idle = is_idle && fiber.state == State::kYielding;
    }
    for (uint32_t block = 0; block < num_blocks; ++block) is_idle = !Release(block) && is_idle;
    idle_rounds = is_idle ? idle_rounds + 1 : 0;
    if (idle_rounds > kMaxIdleRounds) Fail("threads wait for a value that no thread writes");
  }
  Acquire(&end_);
}

// Lets the threads of a block go on if all wait at one barrier. Returns: whether it did.
bool Fibers::Release(uint32_t index) {
  Block& block = blocks_[index];
  const Fiber* waiting = nullptr;
  const Fiber* done = nullptr;
  for (uint32_t i = block.first; i < block.first + block.count; ++i) {
    const Fiber& fiber = *fibers_[i];
    if (fiber.state == State::kYielding || fiber.state == State::kReady) return false;
    if (fiber.state == State::kDone) {
      done = &fiber;
    } else if (waiting != nullptr && waiting->site != fiber.site) {
      Fail(absl::StrCat("thread ", waiting->thread, " waits at ", Name(waiting->site), ", thread ", fiber.thread,
                        " at ", Name(fiber.site)));
    } else {
      waiting = &fiber;
    }
  }
  if (waiting == nullptr) return false;
  if (done != nullptr) {
    Fail(absl::StrCat("thread ", waiting->thread, " waits at ", Name(waiting->site), ", thread ", done->thread,
                      " has returned"));
  }
  if (block.has_last) Note(block).is_inner = true;
  block.last = waiting->site;
  block.has_last = true;
  for (uint32_t i = block.first; i < block.first + block.count; ++i) fibers_[i]->state = State::kReady;
  return true;
}

// Synchronises with all threads, which are given up.
void Fibers::Fail(const std::string& message) {
  for (Block& block : blocks_) {
    for (char& barrier : block.barriers) Acquire(&barrier);
  }
  Acquire(&end_);
  throw std::logic_error(message);
}

Fibers::Reached& Fibers::Note(const Block& block) {
  const auto found = std::find_if(reached_.begin(), reached_.end(),
                                  [&block](const Reached& reached) { return reached.site == block.last; });
  if (found != reached_.end()) return *found;
  return reached_.emplace_back(Reached{block.last});
}

std::vector<BarrierSite> Fibers::InnerSites() const {
  std::vector<BarrierSite> sites;
  for (const Reached& reached : reached_) {
    if (reached.is_inner) sites.push_back(reached.site);
  }
  return sites;
}

}  // namespace sparseagg::testing
