// TaskRegistry: what happens by itself, at the end of leases, deadlines, timeouts and kept tasks.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/base/log.h"
#include "service/tasks/task_registry.h"

namespace sparseagg::service {
namespace {

// The most that one RunDue does, so that calls get the lock in between.
constexpr int kMaxAtOnce = 1000;

}  // namespace

absl::Duration TaskRegistry::EndOf(absl::Time start, absl::Duration length) const {
  const Moment now = services_.clock.Now();
  return now.monotonic + std::min(start + length - now.wall, length);
}

void TaskRegistry::SetDueLocked(TaskEntry& task, absl::Duration when) {
  if (when == task.due) return;
  if (task.due != absl::InfiniteDuration()) due_.erase({task.due, task.number});
  task.due = when;
  if (when == absl::InfiniteDuration()) return;
  due_.emplace(std::make_pair(when, task.number), &task);
  ArmTimerLocked();
}

void TaskRegistry::ArmTimerLocked() {
  absl::Duration first = absl::InfiniteDuration();
  if (!due_.empty()) first = due_.begin()->first.first;
  if (!wait_ends_.empty()) first = std::min(first, wait_ends_.begin()->first);
  // A timer that is too early finds nothing to do, and is set again.
  if (first >= timer_at_) return;
  services_.timer.Cancel(timer_);
  timer_at_ = first;
  timer_ = services_.timer.Schedule(first, [registry = weak_from_this(), pool = &services_.pool] {
    pool->Post([registry] {
      if (const auto self = registry.lock(); self != nullptr) self->RunDue();
    });
  });
}

void TaskRegistry::RunDue() {
  Answers answers;
  {
    MutexLock lock(&mu_);
    const absl::Duration now = services_.clock.Monotonic();
    for (int i = 0; i < kMaxAtOnce && !due_.empty() && due_.begin()->first.first <= now; ++i) {
      OnDueLocked(*due_.begin()->second, now, answers);
    }
    for (int i = 0; i < kMaxAtOnce && !wait_ends_.empty() && wait_ends_.begin()->first <= now; ++i) {
      AnswerLocked(waits_.find(wait_ends_.begin()->second), std::nullopt, answers);
    }
    timer_at_ = absl::InfiniteDuration();
    ArmTimerLocked();
  }
  for (const auto& answer : answers) answer();
}

void TaskRegistry::OnDueLocked(TaskEntry& task, absl::Duration now, Answers& answers) {
  const TaskStateRecord& state = task.state;
  if (HasEnded(state.state)) {
    // A restart finds a task that could not be deleted, and that its time is over.
    journal_.Write(&Store::DeleteTask, task.number).IgnoreError();
    DeleteLocked(task);
    return;
  }
  TaskStateRecord next;
  if (task.deadline_at <= now) {
    next = EndedLocked(task, TaskState::kFailed,
                       absl::StrCat("its deadline of ", absl::FormatDuration(task.record->spec.deadline), " is over"));
  } else {
    services_.metrics.CountTasks("expired", 1);
    next = AfterLeaseLocked(task, absl::StrCat("the lease of client '", state.leases.back().client_id, "' expired"));
  }
  // That an open task's lease has expired is seen from its time after a restart. An end that cannot be written happens
  // again then.
  if (HasEnded(next.state)) {
    if (const absl::Status written = WriteStateLocked(task, next); !written.ok()) {
      Log(LogLevel::kWarning, "tasks_not_stored", {{"task", task.record->id}, {"reason", written.message()}});
    }
  }
  CountEnd(next.state, 1);
  SetStateLocked(task, std::move(next));
  OfferLocked(task, answers);
}

}  // namespace sparseagg::service
