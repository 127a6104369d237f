#include "service/base/clock.h"

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"

namespace sparseagg::service {
namespace {

class RealClock final : public Clock {
 public:
  absl::Duration Monotonic() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  absl::Time WallTime() const override { return absl::Now(); }
};

}  // namespace

const Clock& SystemClock() {
  static const RealClock clock;
  return clock;
}

Timer::Timer(const Clock* clock) : clock_(clock), thread_([this] { Run(); }) {}

Timer::~Timer() { Stop(); }

Timer::Id Timer::Schedule(absl::Duration when, std::function<void()> task) {
  MutexLock lock(&mu_);
  const Id id = next_id_++;
  if (stopped_ || when == absl::InfiniteDuration()) return id;
  tasks_.emplace(std::make_pair(when, id), std::move(task));
  when_.emplace(id, when);
  if (when < sleeps_until_) {
    sleeps_until_ = when;
    changed_.Signal();
  }
  return id;
}

bool Timer::Cancel(Id id) {
  std::function<void()> cancelled;  // destroyed after the lock is released: it may own users of this timer
  MutexLock lock(&mu_);
  const auto found = when_.find(id);
  if (found == when_.end()) return false;
  const auto task = tasks_.find({found->second, id});
  cancelled = std::move(task->second);
  tasks_.erase(task);
  when_.erase(found);
  return true;
}

void Timer::Wake() {
  MutexLock lock(&mu_);
  changed_.Signal();
}

void Timer::Stop() {
  std::map<std::pair<absl::Duration, Id>, std::function<void()>> dropped;  // destroyed after the lock is released
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    dropped.swap(tasks_);
    when_.clear();
    changed_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

void Timer::Run() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      task = AwaitDueTaskLocked();
    }
    if (task == nullptr) return;
    task();
  }
}

std::function<void()> Timer::AwaitDueTaskLocked() {
  while (!stopped_) {
    const absl::Duration now = clock_->Monotonic();
    if (sleeps_until_ <= now) sleeps_until_ = absl::InfiniteDuration();
    const auto first = tasks_.begin();
    if (first != tasks_.end()) sleeps_until_ = std::min(sleeps_until_, first->first.first);
    if (sleeps_until_ == absl::InfiniteDuration()) {
      changed_.Wait(&mu_);
    } else if (sleeps_until_ > now) {
      changed_.WaitWithTimeout(&mu_, sleeps_until_ - now);
    } else {
      std::function<void()> task = std::move(first->second);
      when_.erase(first->first.second);
      tasks_.erase(first);
      return task;
    }
  }
  return nullptr;
}

}  // namespace sparseagg::service
