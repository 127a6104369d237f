// Runs short tasks at given times.
#ifndef SPARSEAGG_SERVICE_BASE_TIMER_H_
#define SPARSEAGG_SERVICE_BASE_TIMER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/time/time.h"
#include "service/base/clock.h"

namespace sparseagg::service {

// One thread for all deadlines of the server. Tasks run on it one after the other and must be light: set a state, post
// to the worker pool. Thread-safe.
class Timer {
 public:
  using Id = uint64_t;  // never 0

  explicit Timer(const Clock* clock);  // borrowed
  ~Timer();                            // as Stop
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Runs `task` once Clock::Monotonic reaches `when`; never if that is infinite or the timer has been stopped.
  Id Schedule(absl::Duration when, std::function<void()> task);
  // True: the task will not run. False: it has run, is running, or was cancelled before.
  bool Cancel(Id id);
  // Looks at the clock again: for whoever moves an injected clock.
  void Wake();
  // Drops all tasks and waits for the one that is running. Not to be called from a task.
  void Stop();

 private:
  void Run();

  const Clock* const clock_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool stopped_ = false;
  Id next_id_ = 1;
  std::map<std::pair<absl::Duration, Id>, std::function<void()>> tasks_;
  std::unordered_map<Id, absl::Duration> when_;
  // Until then the thread sleeps, if it does. Nothing later wakes it, and it does not forget that time when the task is
  // cancelled: most tasks are deadlines of what goes well, and waking it for each would cost more than all else here.
  absl::Duration next_look_ = absl::InfiniteDuration();
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_TIMER_H_
