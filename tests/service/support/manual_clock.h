// A clock that tests move by hand.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_MANUAL_CLOCK_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_MANUAL_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {

class ManualClock final : public Clock {
 public:
  absl::Duration Monotonic() const override {
    MutexLock lock(&mu_);
    return now_;
  }
  absl::Time WallTime() const override {
    MutexLock lock(&mu_);
    return absl::FromUnixSeconds(1'700'000'000) + now_ + wall_offset_;
  }
  // Sets the time of day back or ahead.
  void SetWall(absl::Duration by) {
    MutexLock lock(&mu_);
    wall_offset_ += by;
  }

  // Moves the clock. Tasks of `timer` that are due now run soon, on the thread of the timer.
  void Advance(absl::Duration duration, Timer& timer) {
    {
      MutexLock lock(&mu_);
      now_ += duration;
    }
    timer.Wake();
  }

  // Waits until `timer` has run all tasks that are due.
  void AwaitDue(Timer& timer) const {
    Event ran;
    timer.Schedule(Monotonic(), [&] { ran.Notify(); });
    ran.Wait();
  }

 private:
  mutable Mutex mu_;
  absl::Duration now_ ABSL_GUARDED_BY(mu_) = absl::Hours(1);
  absl::Duration wall_offset_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_MANUAL_CLOCK_H_
