// A limit on how many of a thing there are at once.
#ifndef SPARSEAGG_SERVICE_ADMISSION_COUNT_LIMIT_H_
#define SPARSEAGG_SERVICE_ADMISSION_COUNT_LIMIT_H_

#include <atomic>
#include <cstdint>
#include <utility>

namespace sparseagg::service {

// Thread-safe, lock-free.
class CountLimit {
 public:
  explicit CountLimit(uint64_t limit) : limit_(limit) {}  // 0: no limit

  bool TryAcquire() {
    uint64_t taken = taken_.load(std::memory_order_relaxed);
    do {
      if (limit_ != 0 && taken >= limit_) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed));
    return true;
  }
  void Release() { taken_.fetch_sub(1, std::memory_order_relaxed); }

  uint64_t limit() const { return limit_; }
  uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> taken_{0};
};

// One slot, given back on destruction.
class Permit {
 public:
  Permit() = default;
  explicit Permit(CountLimit* taken_from) : limit_of_(taken_from) {}  // one that TryAcquire has given
  Permit(Permit&& other) noexcept : limit_of_(std::exchange(other.limit_of_, nullptr)) {}
  Permit& operator=(Permit&& other) noexcept {
    std::swap(limit_of_, other.limit_of_);
    return *this;
  }
  ~Permit() { Release(); }

  void Release() {
    if (limit_of_ != nullptr) std::exchange(limit_of_, nullptr)->Release();
  }

 private:
  CountLimit* limit_of_ = nullptr;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_COUNT_LIMIT_H_
