// TaskRegistry: the creation of tasks, and the rounds that they belong to.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/content_hash.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/log.h"
#include "service/tasks/task_registry.h"
#include "service/tasks/task_tenant.h"

namespace sparseagg::service {
namespace {

bool IsSameWork(const TaskSpec& a, const TaskSpec& b) {
  return a.labels == b.labels && a.priority == b.priority && a.deadline == b.deadline &&
         a.max_attempts == b.max_attempts && a.round == b.round && a.ttl == b.ttl;
}

}  // namespace

std::map<std::string, TaskRegistry::RoundCheck> TaskRegistry::CheckRounds(const std::string& tenant,
                                                                          absl::Span<const NewTask> tasks) const {
  std::map<std::string, RoundCheck> checks;
  for (const NewTask& task : tasks) {
    const std::string& id = task.spec.round;
    if (id.empty() || checks.contains(id)) continue;
    RoundCheck check;
    if (auto round = services_.rounds.FindIntake(tenant, id); round.ok()) {
      check.round = *std::move(round);
      if (const RoundState state = check.round->target().state(); state != RoundState::kOpen) {
        check.status = absl::FailedPreconditionError(absl::StrCat("round '", id, "' is ", Name(state)));
      }
    } else {
      check.status = round.status();
    }
    checks.emplace(id, std::move(check));
  }
  return checks;
}

absl::StatusOr<bool> TaskRegistry::IsRepeatedLocked(const std::string& tenant, const std::string& owner,
                                                    const NewTask& task) const {
  const TaskEntry* const existing = FindLocked(tenant, task.id);
  if (existing == nullptr) return false;
  const std::string& payload = task.spec.payload;
  if (existing->record->owner == owner && IsSameWork(existing->record->spec, task.spec) &&
      existing->payload_hash == HashOf(payload.data(), payload.size())) {
    return true;
  }
  return absl::AlreadyExistsError(absl::StrCat("task '", task.id, "' exists already, with another spec or owner"));
}

absl::StatusOr<std::vector<std::string>> TaskRegistry::Create(const std::string& tenant, const std::string& owner,
                                                              std::vector<NewTask> tasks) {
  const std::map<std::string, RoundCheck> rounds = CheckRounds(tenant, tasks);
  std::vector<std::string> ids;
  std::set<std::string> new_rounds;
  Answers answers;
  {
    MutexLock lock(&mu_);
    std::vector<TaskRecord> records;
    std::set<std::string> named;
    uint64_t bytes = 0;
    for (NewTask& task : tasks) {
      if (task.id.empty()) task.id = absl::StrCat("t-", run_, "-", next_number_ + records.size());
      ids.push_back(task.id);
      if (!named.insert(task.id).second) {
        return absl::InvalidArgumentError(absl::StrCat("task_id '", task.id, "' is there twice"));
      }
      ASSIGN_OR_RETURN(const bool is_repeated, IsRepeatedLocked(tenant, owner, task));
      if (is_repeated) continue;
      if (!task.spec.round.empty()) {
        RETURN_IF_ERROR(rounds.at(task.spec.round).status);
        new_rounds.insert(task.spec.round);
      }
      records.push_back({tenant, std::move(task.id), owner, std::move(task.spec), services_.clock.WallTime()});
      bytes += TaskBytes(records.back());
    }
    const uint64_t open =
        counts_[static_cast<size_t>(TaskState::kOpen)] + counts_[static_cast<size_t>(TaskState::kLeased)];
    const uint64_t limit = services_.limits.max_open_tasks;
    if (limit != 0 && !records.empty() && open + records.size() > limit) {
      return absl::ResourceExhaustedError(absl::StrCat(open, " tasks are open, and ", records.size(),
                                                       " more exceed the server's max_open_tasks ", limit));
    }
    RETURN_IF_ERROR(reservation_.Grow(bytes, "tasks", "wait until some have ended"));
    std::vector<Store::NumberedTask> written;
    written.reserve(records.size());
    for (const TaskRecord& record : records) written.push_back({next_number_ + written.size(), &record});
    if (absl::Status stored = written.empty() ? absl::OkStatus() : journal_.Write(&Store::PutTasks, written);
        !stored.ok()) {
      reservation_.SetTo(reservation_.bytes() - bytes);
      return stored;
    }
    // All are there before the first is offered: a worker gets the best of them.
    std::vector<TaskEntry*> created;
    for (TaskRecord& record : records) {
      TaskEntry& task = InsertLocked(next_number_++, std::move(record));
      task.bytes = TaskBytes(*task.record);
      if (!task.record->spec.round.empty()) task.round = rounds.at(task.record->spec.round).round;
      ++counts_[static_cast<size_t>(TaskState::kOpen)];
      task.tenant->ready.Add(&task);
      SetDueLocked(task, task.deadline_at);
      created.push_back(&task);
    }
    services_.metrics.CountTasks("created", created.size());
    for (TaskEntry* const task : created) OfferLocked(*task, answers);
  }
  for (const auto& answer : answers) answer();
  for (const std::string& round : new_rounds) Watch(tenant, rounds.at(round).round);
  return ids;
}

std::optional<uint64_t> TaskRegistry::BaseVersionOf(const TaskSnapshot& task) const {
  const absl::StatusOr<std::shared_ptr<Intake>> round =
      services_.rounds.FindIntake(task.record->tenant, task.record->spec.round);
  return round.ok() ? (*round)->target().LatestVersion() : std::nullopt;
}

void TaskRegistry::Watch(const std::string& tenant, const std::shared_ptr<Intake>& round) {
  const std::string& id = round->config().id;
  {
    MutexLock lock(&mu_);
    const auto tasks = tenants_[tenant].by_round.find(id);
    if (tasks == tenants_[tenant].by_round.end() || tasks->second.watched.lock() == round) return;
    tasks->second.watched = round;
  }
  // The round must not own itself through its wait.
  round->WhenClosed([registry = weak_from_this(), weak = std::weak_ptr<Intake>(round), tenant, pool = &services_.pool] {
    // Owned from now on: the tasks are cancelled even if nobody else has the round any more.
    pool->Post([registry, ended = weak.lock(), tenant] {
      const auto self = registry.lock();
      if (self == nullptr || ended == nullptr) return;
      const RoundState state = ended->target().state();
      if (state == RoundState::kOpen) return;  // the server shuts down
      self->EndRound(tenant, ended->config().id, ended, absl::StrCat("its round is ", Name(state)));
    });
  });
}

void TaskRegistry::EndRound(const std::string& tenant, const std::string& id, const std::shared_ptr<Intake>& round,
                            const std::string& reason) {
  MutexLock lock(&mu_);
  const auto found = tenants_[tenant].by_round.find(id);
  if (found == tenants_[tenant].by_round.end()) return;
  if (found->second.watched.lock() == round) found->second.watched.reset();
  std::vector<TaskEntry*> open;
  for (const auto& [number, task] : found->second.tasks) {
    if (task->round.lock() != round) continue;  // of a later round, which has got the name
    if (task->state.state == TaskState::kOpen) open.push_back(task);
    if (task->state.state == TaskState::kLeased) task->round_has_ended = true;
  }
  const absl::StatusOr<uint64_t> cancelled = CancelLocked(open, reason);
  if (cancelled.ok()) return;
  // Nobody can be told. The tasks are cancelled all the same, and a restart finds that their round has ended.
  Log(LogLevel::kWarning, "tasks_not_stored", {{"round", id}, {"reason", cancelled.status().message()}});
  for (TaskEntry* const task : open) SetStateLocked(*task, EndedLocked(*task, TaskState::kCancelled, reason));
}

absl::Status TaskRegistry::Restore() {
  if (services_.store == nullptr) return absl::OkStatus();
  std::set<std::pair<std::string, std::string>> rounds;  // tenant and id, of tasks that have not ended
  const auto restore = [&](uint64_t number, TaskRecord record, TaskStateRecord state) -> absl::Status {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(reservation_.Grow(TaskBytes(record), "a task of the data directory", ""));
    if (TaskEntry* const earlier = FindLocked(record.tenant, record.id); earlier != nullptr) {
      // It was kept for its time, and then could not be deleted from the disk.
      RETURN_IF_ERROR(journal_.Write(&Store::DeleteTask, earlier->number));
      if (!HasEnded(earlier->state.state)) {
        SetStateLocked(*earlier, EndedLocked(*earlier, TaskState::kCancelled, "another task has its name"));
      }
      DeleteLocked(*earlier);
    }
    const std::string round_id = record.spec.round;
    if (!HasEnded(state.state) && !round_id.empty()) rounds.emplace(record.tenant, round_id);
    const auto round = services_.rounds.FindIntake(record.tenant, round_id);
    TaskEntry& task = InsertLocked(number, std::move(record));
    if (round.ok()) task.round = *round;
    task.bytes = TaskBytes(*task.record);
    // The time of day may have been set back since: nothing has ended in the future, and no lease grows.
    const Moment now = services_.clock.Now();
    state.end_time = std::min(state.end_time, now.wall);
    if (state.lease_expire_time != absl::InfinitePast()) {
      state.lease_expire_time = std::min(state.lease_expire_time, now.wall + state.lease_duration);
      task.lease_end = now.monotonic + (state.lease_expire_time - now.wall);
    }
    next_number_ = number + 1;
    // As if the task had just been created.
    ++counts_[static_cast<size_t>(TaskState::kOpen)];
    task.tenant->ready.Add(&task);
    SetStateLocked(task, std::move(state));
    if (HasEnded(task.state.state)) {
      const absl::Time seen = std::min(services_.store->last_seen(), now.wall);
      const absl::Duration age = std::max(seen - task.state.end_time, absl::ZeroDuration());
      SetDueLocked(task, now.monotonic + task.record->spec.ttl - age);
    }
    FailPoint("restored_task");
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(services_.store->ForEachTask(restore));
  for (const auto& [tenant, id] : rounds) {
    const absl::StatusOr<std::shared_ptr<Intake>> round = services_.rounds.FindIntake(tenant, id);
    if (round.ok()) {
      Watch(tenant, *round);
    } else {
      EndRound(tenant, id, nullptr, "its round is gone");
    }
  }
  const Counts counts = Count();
  uint64_t num_tasks = 0;
  for (const uint64_t count : counts.tasks) num_tasks += count;
  if (num_tasks != 0) Log(LogLevel::kInfo, "tasks_restored", {{"tasks", num_tasks}, {"bytes", counts.bytes}});
  return absl::OkStatus();
}

}  // namespace sparseagg::service
