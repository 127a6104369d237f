// A limit on how many of a thing there are at once.
#ifndef SPARSEAGG_SERVICE_SLOTS_H_
#define SPARSEAGG_SERVICE_SLOTS_H_

#include <atomic>
#include <cstdint>
#include <utility>

namespace sparseagg::service {

// Thread-safe, lock-free.
class Slots {
 public:
  explicit Slots(uint64_t limit) : limit_(limit) {}  // 0: no limit

  bool TryTake() {
    uint64_t taken = taken_.load(std::memory_order_relaxed);
    do {
      if (limit_ != 0 && taken >= limit_) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed));
    return true;
  }
  void GiveBack() { taken_.fetch_sub(1, std::memory_order_relaxed); }

  uint64_t limit() const { return limit_; }
  uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> taken_{0};
};

// One slot, given back on destruction.
class Slot {
 public:
  Slot() = default;
  explicit Slot(Slots* taken_from) : slots_(taken_from) {}  // one that TryTake has given
  Slot(Slot&& other) noexcept : slots_(std::exchange(other.slots_, nullptr)) {}
  Slot& operator=(Slot&& other) noexcept {
    std::swap(slots_, other.slots_);
    return *this;
  }
  ~Slot() { GiveBack(); }

  void GiveBack() {
    if (slots_ != nullptr) std::exchange(slots_, nullptr)->GiveBack();
  }

 private:
  Slots* slots_ = nullptr;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_SLOTS_H_
