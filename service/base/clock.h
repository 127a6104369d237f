// The clock of the server, which tests replace, and the timer of its deadlines.
#ifndef SPARSEAGG_SERVICE_BASE_CLOCK_H_
#define SPARSEAGG_SERVICE_BASE_CLOCK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"

namespace sparseagg::service {

// One instant on both clocks. An event that several fields record is read once.
struct Moment {
  absl::Time wall;
  absl::Duration monotonic;
};

// A source of time. Tests inject a clock that they move by hand. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Returns: the time since a fixed moment. Never jumps; the clock of all deadlines.
  virtual absl::Duration Monotonic() const = 0;
  // Returns: the time of day, for people. May jump.
  virtual absl::Time WallTime() const = 0;
  Moment Now() const { return {WallTime(), Monotonic()}; }
};

// The real clock. Lives for ever.
const Clock& SystemClock();

// All deadlines of the server, on one thread. Tasks run one after the other and must be short: set a state, or post to
// the worker pool. A task may use the timer, but must not call Stop.
//
//   const Timer::Id id = timer.Schedule(clock.Monotonic() + absl::Seconds(5), [&] { … });
//   if (timer.Cancel(id)) …  // the task will not run
//
// Owned by ServerContext. Thread-safe.
class Timer {
 public:
  using Id = uint64_t;  // never 0

  explicit Timer(const Clock* clock);  // borrowed
  ~Timer();                            // calls Stop
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Runs `task` when Clock::Monotonic reaches `when`. The task never runs if `when` is infinite or the timer is
  // stopped.
  Id Schedule(absl::Duration when, std::function<void()> task);
  // Returns: true if the task will not run. False if the task runs, has run, or was cancelled before.
  bool Cancel(Id id);
  // Makes the thread read the clock again. Call it after an injected clock has moved.
  void Wake();
  // Drops all tasks and stops the thread. Blocks: until the running task, if any, ends.
  void Stop();

 private:
  void Run();
  // Blocks: until a task is due or the timer is stopped. Returns: the task, removed; empty if the timer is stopped.
  std::function<void()> AwaitDueTaskLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;
  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  Id next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<std::pair<absl::Duration, Id>, std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<Id, absl::Duration> when_ ABSL_GUARDED_BY(mu_);  // of each task
  // The thread sleeps until then. Only an earlier task wakes the thread, and a cancelled task leaves the time as it is:
  // most tasks are timeouts of calls that go well, and a wake-up for each would cost more than all else here.
  absl::Duration sleeps_until_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  std::thread thread_;  // the last member: starts when all others exist
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_CLOCK_H_
