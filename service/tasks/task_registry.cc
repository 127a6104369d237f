#include "service/tasks/task_registry.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/rounds/registry.h"
#include "service/tasks/task_tenant.h"

namespace sparseagg::service {
namespace {

// The most tasks that one List looks at, so that a filter that few tasks pass does not hold the lock for long.
constexpr int kMaxListed = 10'000;

// A task in a list, without its texts.
constexpr uint64_t kListedBytes = 200;

absl::Status NoTaskError(absl::string_view id) { return absl::NotFoundError(absl::StrCat("no task '", id, "'")); }

}  // namespace

TaskRegistry::TaskRegistry(const TaskServices& services)
    : services_(services),
      run_(RandomId("")),
      journal_(services.store),
      reservation_(&services.budget, /*keeps_submissions=*/false) {}

TaskRegistry::~TaskRegistry() {
  MutexLock lock(&mu_);
  services_.timer.Cancel(timer_);
}

TaskEntry* TaskRegistry::FindLocked(const std::string& tenant, absl::string_view id) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return nullptr;
  const auto task = found->second.by_id.find(id);
  return task == found->second.by_id.end() ? nullptr : task->second;
}

absl::StatusOr<TaskEntry*> TaskRegistry::GetLocked(const std::string& tenant, absl::string_view id) const {
  TaskEntry* const task = FindLocked(tenant, id);
  if (task == nullptr) return NoTaskError(id);
  return task;
}

TaskSnapshot TaskRegistry::SnapshotLocked(const TaskEntry& task) const {
  TaskSnapshot snapshot{task.record, {}, absl::ZeroDuration(), absl::InfinitePast()};
  const TaskStateRecord& state = task.state;
  // All but the earlier leases.
  snapshot.state = {state.state,          {},           state.attempts,      state.lease_expire_time,
                    state.lease_duration, state.reason, state.submission_id, state.result,
                    state.end_time};
  if (!state.leases.empty()) snapshot.state.leases.push_back(state.leases.back());
  if (state.state == TaskState::kLeased) {
    snapshot.lease_remaining = std::max(task.lease_end - services_.clock.Monotonic(), absl::ZeroDuration());
  }
  if (HasEnded(state.state)) snapshot.expire_time = state.end_time + task.record->spec.ttl;
  return snapshot;
}

absl::StatusOr<TaskSnapshot> TaskRegistry::Get(const std::string& tenant, absl::string_view id) const {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const TaskEntry* const task, GetLocked(tenant, id));
  return SnapshotLocked(*task);
}

absl::StatusOr<TaskRegistry::Page> TaskRegistry::List(const std::string& tenant, const Filter& filter, size_t page_size,
                                                      uint64_t max_bytes, absl::string_view page_token) const {
  uint64_t first = 0;
  if (!page_token.empty() && !absl::SimpleAtoi(page_token, &first)) {
    return absl::InvalidArgumentError(absl::StrCat("page_token '", page_token, "' is not a token of this call"));
  }
  Page page;
  int num_seen = 0;
  uint64_t bytes = 0;
  MutexLock lock(&mu_);
  // Returns: false if the page is full before this task.
  const auto add = [&](const TaskEntry& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (page.tasks.size() == page_size || bytes > max_bytes || ++num_seen > kMaxListed) {
      page.next_page_token = absl::StrCat(task.number);
      return false;
    }
    if (filter.state.has_value() && task.state.state != *filter.state) return true;
    page.tasks.push_back(SnapshotLocked(task));
    bytes += kListedBytes + StateBytes(task.state);
    return true;
  };
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return page;
  if (filter.round.empty()) {
    const auto& tasks = found->second.tasks;
    for (auto it = tasks.lower_bound(first); it != tasks.end() && add(*it->second); ++it) {
    }
    return page;
  }
  const auto of_round = found->second.by_round.find(filter.round);
  if (of_round == found->second.by_round.end()) return page;
  const auto& tasks = of_round->second.tasks;
  for (auto it = tasks.lower_bound(first); it != tasks.end() && add(*it->second); ++it) {
  }
  return page;
}

absl::StatusOr<uint64_t> TaskRegistry::Cancel(const std::string& tenant, absl::Span<const std::string> ids,
                                              const std::string& reason) {
  MutexLock lock(&mu_);
  std::set<TaskEntry*> tasks;  // each once
  for (const std::string& id : ids) {
    ASSIGN_OR_RETURN(TaskEntry* const task, GetLocked(tenant, id));
    tasks.insert(task);
  }
  return CancelLocked(std::vector<TaskEntry*>(tasks.begin(), tasks.end()), reason);
}

absl::StatusOr<uint64_t> TaskRegistry::CancelRound(const std::string& tenant, const std::string& round,
                                                   const std::string& reason) {
  MutexLock lock(&mu_);
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return 0;
  const auto of_round = found->second.by_round.find(round);
  if (of_round == found->second.by_round.end()) return 0;
  std::vector<TaskEntry*> tasks;
  for (const auto& [number, task] : of_round->second.tasks) tasks.push_back(task);
  return CancelLocked(tasks, reason);
}

absl::StatusOr<uint64_t> TaskRegistry::CancelLocked(absl::Span<TaskEntry* const> tasks, const std::string& reason) {
  std::vector<std::pair<TaskEntry*, TaskStateRecord>> cancelled;
  for (TaskEntry* const task : tasks) {
    if (HasEnded(task->state.state)) continue;
    cancelled.emplace_back(task, EndedLocked(*task, TaskState::kCancelled, reason));
  }
  std::vector<Store::NumberedTaskState> written;
  written.reserve(cancelled.size());
  for (const auto& [task, state] : cancelled) written.push_back({task->number, &state});
  if (!written.empty()) RETURN_IF_ERROR(journal_.Write(&Store::PutTaskStates, written));
  CountEnd(TaskState::kCancelled, cancelled.size());
  for (auto& [task, state] : cancelled) SetStateLocked(*task, std::move(state));
  return cancelled.size();
}

TaskEntry& TaskRegistry::InsertLocked(uint64_t number, TaskRecord record) {
  TaskTenant& tenant = tenants_[record.tenant];
  auto task = std::make_unique<TaskEntry>();
  TaskEntry& entry = *task;
  entry.number = number;
  entry.tenant = &tenant;
  entry.payload_hash = HashOf(record.spec.payload.data(), record.spec.payload.size());
  if (record.spec.deadline != absl::InfiniteDuration()) {
    entry.deadline_at = EndOf(record.create_time, record.spec.deadline);
  }
  entry.owner = &tenant.owners[record.owner];
  ++entry.owner->num_tasks;
  entry.record = std::make_shared<const TaskRecord>(std::move(record));
  tenant.by_id.emplace(entry.record->id, &entry);
  if (!entry.record->spec.round.empty()) tenant.by_round[entry.record->spec.round].tasks.emplace(number, &entry);
  tenant.tasks.emplace(number, std::move(task));
  return entry;
}

void TaskRegistry::DeleteLocked(TaskEntry& task) {
  TaskTenant& tenant = *task.tenant;
  const std::shared_ptr<const TaskRecord> record = task.record;
  SetDueLocked(task, absl::InfiniteDuration());
  --counts_[static_cast<size_t>(task.state.state)];
  reservation_.SetTo(reservation_.bytes() - task.bytes);
  tenant.by_id.erase(record->id);
  if (--task.owner->num_tasks == 0) tenant.owners.erase(record->owner);
  const auto of_round = tenant.by_round.find(record->spec.round);
  if (of_round != tenant.by_round.end()) {
    of_round->second.tasks.erase(task.number);
    if (of_round->second.tasks.empty()) tenant.by_round.erase(of_round);
  }
  tenant.tasks.erase(task.number);
}

TaskRegistry::Counts TaskRegistry::Count() const {
  MutexLock lock(&mu_);
  return {counts_, waits_.size(), reservation_.bytes()};
}

}  // namespace sparseagg::service
