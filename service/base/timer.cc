#include "service/base/timer.h"

#include <algorithm>

namespace sparseagg::service {
namespace {

// The end of a wait must fit the nanoseconds of the system's clock, which a deadline of centuries does not.
constexpr absl::Duration kLongestWait = absl::Hours(1);

}  // namespace

Timer::Timer(const Clock* clock) : clock_(clock), thread_([this] { Run(); }) {}

Timer::~Timer() { Stop(); }

Timer::Id Timer::Schedule(absl::Duration when, std::function<void()> task) {
  std::lock_guard lock(mu_);
  const Id id = next_id_++;
  if (stopped_ || when == absl::InfiniteDuration()) return id;
  tasks_.emplace(std::make_pair(when, id), std::move(task));
  when_.emplace(id, when);
  if (when < next_look_) {
    next_look_ = when;
    changed_.notify_one();
  }
  return id;
}

bool Timer::Cancel(Id id) {
  std::function<void()> dropped;  // destroyed after the lock is released: it may own things that use this timer
  std::lock_guard lock(mu_);
  const auto found = when_.find(id);
  if (found == when_.end()) return false;
  const auto task = tasks_.find({found->second, id});
  dropped = std::move(task->second);
  tasks_.erase(task);
  when_.erase(found);
  return true;
}

void Timer::Wake() {
  std::lock_guard lock(mu_);
  changed_.notify_one();
}

void Timer::Stop() {
  std::map<std::pair<absl::Duration, Id>, std::function<void()>> dropped;
  {
    std::lock_guard lock(mu_);
    stopped_ = true;
    dropped.swap(tasks_);
    when_.clear();
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Timer::Run() {
  std::unique_lock lock(mu_);
  while (!stopped_) {
    const absl::Duration now = clock_->Monotonic();
    if (next_look_ <= now) next_look_ = absl::InfiniteDuration();
    const auto first = tasks_.begin();
    if (first != tasks_.end()) next_look_ = std::min(next_look_, first->first.first);
    if (next_look_ == absl::InfiniteDuration()) {
      changed_.wait(lock);
    } else if (next_look_ > now) {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(next_look_ - now, kLongestWait)));
    } else {
      std::function<void()> task = std::move(first->second);
      when_.erase(first->first.second);
      tasks_.erase(first);
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }
}

}  // namespace sparseagg::service
