// TaskRegistry: leases, from the wait for one to its end.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/refusals.h"
#include "service/tasks/task_registry.h"
#include "service/tasks/task_tenant.h"

namespace sparseagg::service {
namespace {

absl::Status DrainedError() { return absl::UnavailableError("the server is shutting down and leases no tasks"); }

absl::Status EndedError(const TaskStateRecord& state) {
  const absl::string_view colon = state.reason.empty() ? "" : ": ";
  return WithReason(absl::FailedPreconditionError(absl::StrCat("the task is ", Name(state.state), colon, state.reason)),
                    "TASK_ENDED", {{"state", Name(state.state)}});
}

bool Had(const TaskStateRecord& state, const LeaseHolder& holder) {
  return std::find(state.leases.begin(), state.leases.end(), holder) != state.leases.end();
}

absl::Status NoLeaseError(const TaskStateRecord& state, const LeaseHolder& holder) {
  if (Had(state, holder)) return absl::FailedPreconditionError("the task has been leased to another worker since");
  return absl::FailedPreconditionError(
      absl::StrCat("client '", holder.client_id, "' has no lease '", holder.lease_id, "' of this task"));
}

// Checks that the lease is the latest of a task that has not ended.
absl::Status CheckIsLatest(const TaskStateRecord& state, const LeaseHolder& holder) {
  if (HasEnded(state.state)) return EndedError(state);
  if (state.leases.empty() || !(state.leases.back() == holder)) return NoLeaseError(state, holder);
  return absl::OkStatus();
}

std::pair<std::string, std::string> KeyOf(const LeaseHolder& holder) { return {holder.client_id, holder.lease_id}; }

}  // namespace

TaskRegistry::WaitId TaskRegistry::Lease(LeaseRequest request, absl::Duration timeout, OnLease done) {
  Leased leased = std::nullopt;
  WaitId id;
  {
    MutexLock lock(&mu_);
    id = next_wait_++;
    if (request.holder.lease_id.empty()) request.holder.lease_id = absl::StrCat("l-", run_, "-", id);
    TaskTenant& tenant = tenants_[request.tenant];
    const auto held = tenant.leased_to.find(KeyOf(request.holder));
    if (held != tenant.leased_to.end()) {
      leased = SnapshotLocked(*held->second);
    } else if (is_drained_) {
      leased = DrainedError();
    } else if (TaskEntry* const task = tenant.ready.Best(request.labels); task != nullptr) {
      const absl::Status granted = GrantLocked(*task, request);
      leased = granted.ok() ? Leased(SnapshotLocked(*task)) : Leased(granted);
    } else if (timeout > absl::ZeroDuration()) {
      const absl::Duration end = services_.clock.Monotonic() + timeout;
      tenant.waiting.Add(id, request.labels);
      wait_ends_.emplace(end, id);
      waits_.emplace(id, Wait{&tenant, std::move(request), end, std::move(done)});
      ArmTimerLocked();
      return id;
    }
  }
  done(std::move(leased));
  return id;
}

bool TaskRegistry::StopWaiting(WaitId id) {
  OnLease dropped;  // destroyed after the lock is released
  MutexLock lock(&mu_);
  const auto wait = waits_.find(id);
  if (wait == waits_.end()) return false;
  dropped = std::move(wait->second.done);
  wait->second.tenant->waiting.Remove(id, wait->second.request.labels);
  wait_ends_.erase({wait->second.end, id});
  waits_.erase(wait);
  return true;
}

void TaskRegistry::AnswerLocked(std::map<WaitId, Wait>::iterator wait, Leased leased, Answers& answers) {
  wait->second.tenant->waiting.Remove(wait->first, wait->second.request.labels);
  wait_ends_.erase({wait->second.end, wait->first});
  answers.push_back([done = std::move(wait->second.done), leased = std::move(leased)] { done(leased); });
  waits_.erase(wait);
}

absl::Status TaskRegistry::GrantLocked(TaskEntry& task, const LeaseRequest& request) {
  TaskStateRecord next = task.state;
  next.state = TaskState::kLeased;
  next.leases.push_back(request.holder);
  ++next.attempts;
  const Moment now = services_.clock.Now();
  next.lease_expire_time = now.wall + request.duration;
  next.lease_duration = request.duration;
  RETURN_IF_ERROR(ChangeLocked(task, std::move(next), now.monotonic + request.duration));
  task.owner->served_at = ++task.tenant->turn;
  services_.metrics.CountTasks("leased", 1);
  return absl::OkStatus();
}

void TaskRegistry::OfferLocked(TaskEntry& task, Answers& answers) {
  TaskTenant& tenant = *task.tenant;
  while (task.state.state == TaskState::kOpen) {
    const std::optional<uint64_t> longest = tenant.waiting.Longest(task.record->spec.labels);
    if (!longest.has_value()) return;
    const auto wait = waits_.find(*longest);
    const LeaseRequest& request = wait->second.request;
    // A worker that repeats its call, because the connection broke, may wait twice under one lease id.
    const auto held = tenant.leased_to.find(KeyOf(request.holder));
    if (held != tenant.leased_to.end()) {
      AnswerLocked(wait, SnapshotLocked(*held->second), answers);
      continue;
    }
    TaskEntry* const best = tenant.ready.Best(request.labels);
    const absl::Status granted = GrantLocked(*best, request);
    AnswerLocked(wait, granted.ok() ? Leased(SnapshotLocked(*best)) : Leased(granted), answers);
  }
}

absl::Status TaskRegistry::WriteStateLocked(const TaskEntry& task, const TaskStateRecord& state) {
  const Store::NumberedTaskState written(task.number, &state);
  return journal_.Write(&Store::PutTaskStates, absl::MakeConstSpan(&written, 1));
}

absl::Status TaskRegistry::ChangeLocked(TaskEntry& task, TaskStateRecord next, absl::Duration lease_end) {
  RETURN_IF_ERROR(WriteStateLocked(task, next));
  task.lease_end = lease_end;
  CountEnd(next.state, 1);
  SetStateLocked(task, std::move(next));
  return absl::OkStatus();
}

void TaskRegistry::CountEnd(TaskState state, uint64_t number) {
  if (!HasEnded(state)) return;
  services_.metrics.CountTasks(state == TaskState::kCompleted ? "completed"
                               : state == TaskState::kFailed  ? "failed"
                                                              : "cancelled",
                               number);
}

void TaskRegistry::SetStateLocked(TaskEntry& task, TaskStateRecord state) {
  TaskTenant& tenant = *task.tenant;
  const TaskState old = task.state.state;
  if (old == TaskState::kOpen) tenant.ready.Remove(&task);
  if (old == TaskState::kLeased) tenant.leased_to.erase(KeyOf(task.state.leases.back()));
  --counts_[static_cast<size_t>(old)];
  ++counts_[static_cast<size_t>(state.state)];
  task.state = std::move(state);
  switch (task.state.state) {
    case TaskState::kOpen:
      tenant.ready.Add(&task);
      SetDueLocked(task, task.deadline_at);
      break;
    case TaskState::kLeased:
      tenant.leased_to.emplace(KeyOf(task.state.leases.back()), &task);
      SetDueLocked(task, std::min(task.lease_end, task.deadline_at));
      break;
    default: {
      auto without_payload = std::make_shared<TaskRecord>(*task.record);
      without_payload->spec.payload = std::string();
      auto by_id = tenant.by_id.extract(task.record->id);
      by_id.key() = without_payload->id;
      tenant.by_id.insert(std::move(by_id));
      task.record = std::move(without_payload);
      SetDueLocked(task, EndOf(task.state.end_time, task.record->spec.ttl));
    }
  }
  const uint64_t bytes = TaskBytes(*task.record) + StateBytes(task.state);
  reservation_.SetTo(reservation_.bytes() - task.bytes + bytes);
  task.bytes = bytes;
}

TaskStateRecord TaskRegistry::EndedLocked(const TaskEntry& task, TaskState state, std::string reason) const {
  TaskStateRecord next = task.state;
  next.state = state;
  next.reason = std::move(reason);
  if (next.leases.size() > 1) next.leases = {next.leases.back()};
  next.end_time = services_.clock.WallTime();
  return next;
}

TaskStateRecord TaskRegistry::AfterLeaseLocked(const TaskEntry& task, const std::string& reason) const {
  if (task.state.attempts >= task.record->spec.max_attempts) {
    return EndedLocked(task, TaskState::kFailed,
                       absl::StrCat("no attempt is left of ", task.record->spec.max_attempts, "; the last: ", reason));
  }
  if (task.round_has_ended) return EndedLocked(task, TaskState::kCancelled, "its round has ended");
  TaskStateRecord next = task.state;
  next.state = TaskState::kOpen;
  next.reason = reason;
  return next;
}

absl::StatusOr<TaskSnapshot> TaskRegistry::Extend(const LeaseName& lease, absl::Duration duration) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(TaskEntry* const task, GetLocked(lease.tenant, lease.task_id));
  RETURN_IF_ERROR(CheckIsLatest(task->state, lease.holder));
  if (task->state.state == TaskState::kOpen) {
    if (task->state.lease_expire_time == absl::InfinitePast()) {
      return absl::FailedPreconditionError("the lease was given back");
    }
    if (task->tenant->leased_to.contains(KeyOf(lease.holder))) {
      return absl::FailedPreconditionError(
          absl::StrCat("the lease has expired, and its id '", lease.holder.lease_id, "' is that of another lease now"));
    }
  }
  TaskStateRecord next = task->state;
  next.state = TaskState::kLeased;
  const Moment now = services_.clock.Now();
  next.lease_expire_time = now.wall + duration;
  next.lease_duration = duration;
  RETURN_IF_ERROR(ChangeLocked(*task, std::move(next), now.monotonic + duration));
  return SnapshotLocked(*task);
}

absl::Status TaskRegistry::CheckMayCompleteLocked(const TaskEntry& task, const LeaseHolder& holder) const {
  if (HasEnded(task.state.state)) return EndedError(task.state);
  return Had(task.state, holder) ? absl::OkStatus() : NoLeaseError(task.state, holder);
}

absl::StatusOr<TaskSnapshot> TaskRegistry::Complete(const LeaseName& lease, const std::string& submission_id,
                                                    const std::string& result) {
  std::string round_id;
  std::shared_ptr<Intake> round_of_task;
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const TaskEntry* const task, GetLocked(lease.tenant, lease.task_id));
    const TaskStateRecord& state = task->state;
    if (state.state == TaskState::kCompleted && state.leases.back() == lease.holder &&
        state.submission_id == submission_id && state.result == result) {
      return SnapshotLocked(*task);
    }
    RETURN_IF_ERROR(CheckMayCompleteLocked(*task, lease.holder));
    round_id = task->record->spec.round;
    round_of_task = task->round.lock();
  }
  // Without the lock, since the round has one of its own.
  if (!round_id.empty()) {
    const absl::StatusOr<std::shared_ptr<Intake>> round = services_.rounds.FindIntake(lease.tenant, round_id);
    if (!round.ok()) return absl::FailedPreconditionError(round.status().message());
    if (*round != round_of_task) {
      return absl::FailedPreconditionError(
          absl::StrCat("the task's round '", round_id, "' is gone, and a later round has its name"));
    }
    if (submission_id.empty() || !(*round)->target().HasSubmission(lease.holder.client_id, submission_id)) {
      return absl::FailedPreconditionError(absl::StrCat("client '", lease.holder.client_id,
                                                        "' has no committed submission '", submission_id,
                                                        "' in round '", round_id, "'"));
    }
  }
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(TaskEntry* const task, GetLocked(lease.tenant, lease.task_id));
  RETURN_IF_ERROR(CheckMayCompleteLocked(*task, lease.holder));
  RETURN_IF_ERROR(reservation_.Grow(result.size(), "the result of a task", "send a smaller one"));
  TaskStateRecord next = EndedLocked(*task, TaskState::kCompleted, "");
  next.leases = {lease.holder};
  next.submission_id = submission_id;
  next.result = result;
  const absl::Status changed = ChangeLocked(*task, std::move(next), task->lease_end);
  reservation_.SetTo(reservation_.bytes() - result.size());  // is part of task->bytes now
  RETURN_IF_ERROR(changed);
  return SnapshotLocked(*task);
}

absl::StatusOr<TaskSnapshot> TaskRegistry::Fail(const LeaseName& lease, const std::string& reason, bool retry) {
  Answers answers;
  absl::StatusOr<TaskSnapshot> snapshot;
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(TaskEntry* const task, GetLocked(lease.tenant, lease.task_id));
    const TaskStateRecord& state = task->state;
    const bool is_latest = !state.leases.empty() && state.leases.back() == lease.holder;
    const bool is_given_back = state.lease_expire_time == absl::InfinitePast();
    const bool is_as_asked = state.state == TaskState::kFailed || (state.state == TaskState::kOpen && retry);
    if (is_latest && is_given_back && is_as_asked) return SnapshotLocked(*task);
    RETURN_IF_ERROR(CheckIsLatest(state, lease.holder));
    TaskStateRecord next = retry ? AfterLeaseLocked(*task, reason) : EndedLocked(*task, TaskState::kFailed, reason);
    next.lease_expire_time = absl::InfinitePast();  // Extend does not renew it
    RETURN_IF_ERROR(ChangeLocked(*task, std::move(next), task->lease_end));
    OfferLocked(*task, answers);
    snapshot = SnapshotLocked(*task);
  }
  for (const auto& answer : answers) answer();
  return snapshot;
}

void TaskRegistry::Drain() {
  Answers answers;
  {
    MutexLock lock(&mu_);
    is_drained_ = true;
    while (!waits_.empty()) AnswerLocked(waits_.begin(), DrainedError(), answers);
  }
  for (const auto& answer : answers) answer();
}

}  // namespace sparseagg::service
