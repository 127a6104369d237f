// A limit on how often something may happen.
#ifndef SPARSEAGG_SERVICE_ADMISSION_RATE_LIMIT_H_
#define SPARSEAGG_SERVICE_ADMISSION_RATE_LIMIT_H_

#include <algorithm>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"

namespace sparseagg::service {

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

#endif  // SPARSEAGG_SERVICE_ADMISSION_RATE_LIMIT_H_
