#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "service/base/clock.h"
#include "service/base/worker_pool.h"
#include "tests/service/support/manual_clock.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;

TEST(TimerTest, Schedule_SeveralTimes_RunsInOrderOfTime) {
  ManualClock clock;
  Timer timer(&clock);
  const absl::Duration now = clock.Monotonic();
  std::vector<int> order;  // only touched by the timer's thread until `done`
  Event done;
  timer.Schedule(now + absl::Seconds(3), [&] {
    order.push_back(3);
    done.Notify();
  });
  timer.Schedule(now + absl::Seconds(1), [&] { order.push_back(1); });
  timer.Schedule(now + absl::Seconds(2), [&] { order.push_back(2); });
  clock.Advance(absl::Seconds(3), timer);
  done.Wait();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(TimerTest, Schedule_NotDueYet_DoesNotRun) {
  ManualClock clock;
  Timer timer(&clock);
  const absl::Duration now = clock.Monotonic();
  std::atomic<bool> early{false};
  timer.Schedule(now + absl::Seconds(10), [&] { early = true; });
  Event due;
  timer.Schedule(now + absl::Seconds(9), [&] { due.Notify(); });
  clock.Advance(absl::Seconds(9), timer);
  due.Wait();
  EXPECT_FALSE(early);
}

TEST(TimerTest, Schedule_FromATask_Works) {
  ManualClock clock;
  Timer timer(&clock);
  Event done;
  timer.Schedule(clock.Monotonic(), [&] { timer.Schedule(clock.Monotonic(), [&] { done.Notify(); }); });
  done.Wait();
}

TEST(TimerTest, Cancel_BeforeItIsDue_NeverRuns) {
  ManualClock clock;
  Timer timer(&clock);
  const absl::Duration now = clock.Monotonic();
  std::atomic<bool> ran{false};
  const Timer::Id id = timer.Schedule(now + absl::Seconds(1), [&] { ran = true; });
  EXPECT_TRUE(timer.Cancel(id));
  EXPECT_FALSE(timer.Cancel(id));
  Event later;
  timer.Schedule(now + absl::Seconds(2), [&] { later.Notify(); });
  clock.Advance(absl::Seconds(2), timer);
  later.Wait();
  EXPECT_FALSE(ran);
}

TEST(TimerTest, Schedule_Infinite_NeverRuns) {
  ManualClock clock;
  Timer timer(&clock);
  const Timer::Id id = timer.Schedule(absl::InfiniteDuration(), [] { FAIL(); });
  EXPECT_FALSE(timer.Cancel(id));
}

TEST(TimerTest, Stop_WithTasksLeft_DropsThem) {
  ManualClock clock;
  Timer timer(&clock);
  timer.Schedule(clock.Monotonic() + absl::Seconds(1), [] { FAIL(); });
  timer.Stop();
  clock.Advance(absl::Seconds(2), timer);
  timer.Schedule(clock.Monotonic(), [] { FAIL(); });
}

class CountingClock final : public Clock {
 public:
  absl::Duration Monotonic() const override {
    ++looks_;
    return absl::ZeroDuration();
  }
  absl::Time WallTime() const override { return absl::UnixEpoch(); }
  int looks() const { return looks_; }

 private:
  mutable std::atomic<int> looks_{0};
};

TEST(TimerTest, Schedule_DeadlinesThatAreCancelled_DoNotWakeTheThread) {
  CountingClock clock;
  {
    Timer timer(&clock);
    for (int i = 0; i < 10'000; ++i) {
      const Timer::Id id = timer.Schedule(absl::Hours(1) + absl::Microseconds(i), [] { FAIL(); });
      EXPECT_TRUE(timer.Cancel(id));
    }
  }
  EXPECT_LE(clock.looks(), 10) << "one at the start, one for the first, one to stop, and what wakes up by itself";
}

TEST(TimerTest, Schedule_InTenThousandYears_WaitsAtRest) {
  CountingClock clock;
  {
    Timer timer(&clock);
    timer.Schedule(absl::Hours(24 * 365) * 10'000, [] { FAIL(); });
    Event soon;
    Timer real(&SystemClock());
    real.Schedule(SystemClock().Monotonic() + absl::Milliseconds(50), [&] { soon.Notify(); });
    soon.Wait();
  }
  EXPECT_LE(clock.looks(), 10) << "one at the start, one for the task, one to stop, and what wakes up by itself";
}

TEST(TimerTest, Schedule_RealClock_RunsAtItsTime) {
  Timer timer(&SystemClock());
  const absl::Duration begin = SystemClock().Monotonic();
  Event done;
  absl::Duration ran_at;
  timer.Schedule(begin + absl::Milliseconds(20), [&] {
    ran_at = SystemClock().Monotonic();
    done.Notify();
  });
  done.Wait();
  EXPECT_GE(ran_at - begin, absl::Milliseconds(20));
}

TEST(TimerTest, Schedule_SoonerThanWhatItWaitsFor_RunsFirst) {
  Timer timer(&SystemClock());
  const absl::Duration now = SystemClock().Monotonic();
  Event running;
  timer.Schedule(now, [&] { running.Notify(); });
  timer.Schedule(now + absl::Hours(1), [] { FAIL(); });
  running.Wait();  // the thread is on its way to wait for the hour
  Event done;
  timer.Schedule(SystemClock().Monotonic() + absl::Milliseconds(20), [&] { done.Notify(); });
  done.Wait();
}

TEST(WorkerPoolTest, Destructor_WithTasksLeft_RunsThemAll) {
  std::atomic<int> ran{0};
  {
    WorkerPool pool(3);
    EXPECT_EQ(pool.num_threads(), 3);
    for (int i = 0; i < 1000; ++i) pool.Post([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(WorkerPoolTest, Post_OneThread_KeepsTheOrder) {
  std::vector<int> order;
  {
    WorkerPool pool(1);
    for (int i = 0; i < 5; ++i) pool.Post([&order, i] { order.push_back(i); });
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4));
}

}  // namespace
}  // namespace sparseagg::service
