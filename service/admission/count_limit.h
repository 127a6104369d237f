// Limits on the number of rounds, uploads or waiting calls that exist at once, and on how often something may happen.
#ifndef SPARSEAGG_SERVICE_ADMISSION_COUNT_LIMIT_H_
#define SPARSEAGG_SERVICE_ADMISSION_COUNT_LIMIT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"

namespace sparseagg::service {

// A counter with a limit. TryAcquire takes one unit; a Permit returns the unit when it is destroyed.
//
//   if (!uploads.TryAcquire()) return absl::ResourceExhaustedError("too many uploads");
//   Permit permit(&uploads);  // lives as long as the upload
//
// Owned by ServerContext and Tenants. Thread-safe, lock-free.
class CountLimit {
 public:
  // `limit` 0: no limit. Each unit is one of `whole`, too, where there is one: a tenant's part of the server's limit.
  explicit CountLimit(uint64_t limit, CountLimit* whole = nullptr) : limit_(limit), whole_(whole) {}

  // Returns: false, and takes nothing, if this limit or that of the whole is reached.
  bool TryAcquire() {
    uint64_t taken = taken_.load(std::memory_order_relaxed);
    do {
      if (limit_ != 0 && taken >= limit_) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed));
    if (whole_ == nullptr || whole_->TryAcquire()) return true;
    taken_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  // Returns one unit that TryAcquire has taken.
  void Release() {
    taken_.fetch_sub(1, std::memory_order_relaxed);
    if (whole_ != nullptr) whole_->Release();
  }

  // Whether this limit itself is reached, rather than that of the whole: for the text of an error.
  bool IsFull() const { return limit_ != 0 && taken() >= limit_; }

  uint64_t limit() const { return limit_; }
  // Requires: this limit is a part of another.
  const CountLimit& whole() const { return *whole_; }
  uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_;
  CountLimit* const whole_;
  std::atomic<uint64_t> taken_{0};
};

// One unit of a CountLimit, which must outlive the permit. The destructor releases the unit. Not thread-safe.
class Permit {
 public:
  Permit() = default;                                          // empty
  explicit Permit(CountLimit* acquired) : limit_(acquired) {}  // owns a unit that `acquired->TryAcquire()` has taken
  Permit(Permit&& other) noexcept : limit_(std::exchange(other.limit_, nullptr)) {}
  Permit& operator=(Permit&& other) noexcept {
    std::swap(limit_, other.limit_);
    return *this;
  }
  ~Permit() { Release(); }

  void Release() {
    if (limit_ != nullptr) std::exchange(limit_, nullptr)->Release();
  }

 private:
  CountLimit* limit_ = nullptr;
};

// A token bucket: `per_second` tokens flow in each second, and it holds as many at most, so that a second's worth may
// happen at once.
//
// Owned by Tenants. Thread-safe.
class RateLimit {
 public:
  RateLimit(uint64_t per_second, const Clock* clock)  // 0: no limit
      : per_second_(per_second), clock_(*clock), tokens_(static_cast<double>(per_second)) {}

  // Returns: false if too much has happened in the last second; it may happen again within one.
  bool TryTake() {
    if (per_second_ == 0) return true;
    const auto most = static_cast<double>(per_second_);
    MutexLock lock(&mu_);
    const absl::Duration now = clock_.Monotonic();
    tokens_ = std::min(most, tokens_ + absl::ToDoubleSeconds(now - filled_at_) * most);
    filled_at_ = now;
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

  uint64_t per_second() const { return per_second_; }

 private:
  const uint64_t per_second_;
  const Clock& clock_;
  Mutex mu_;
  double tokens_ ABSL_GUARDED_BY(mu_);
  absl::Duration filled_at_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();  // Clock::Monotonic
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_COUNT_LIMIT_H_
