// A clock that tests move by hand.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_MANUAL_CLOCK_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_MANUAL_CLOCK_H_

#include <mutex>

#include "absl/time/time.h"
#include "service/base/clock.h"
#include "service/base/timer.h"
#include "tests/service/support/event.h"

namespace sparseagg::service {

class ManualClock final : public Clock {
 public:
  absl::Duration Monotonic() const override {
    std::lock_guard lock(mu_);
    return now_;
  }
  absl::Time WallTime() const override { return absl::FromUnixSeconds(1'700'000'000) + Monotonic(); }

  // Tasks of `timer` that have become due run soon, on its thread.
  void Advance(absl::Duration duration, Timer& timer) {
    {
      std::lock_guard lock(mu_);
      now_ += duration;
    }
    timer.Wake();
  }

  // Until `timer` has run what had become due.
  void AwaitDue(Timer& timer) const {
    Event ran;
    timer.Schedule(Monotonic(), [&] { ran.Notify(); });
    ran.Wait();
  }

 private:
  mutable std::mutex mu_;
  absl::Duration now_ = absl::Hours(1);
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_MANUAL_CLOCK_H_
