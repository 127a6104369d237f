// What the task registry keeps of one tenant: its tasks, the open ones in order, and the workers that wait.
#ifndef SPARSEAGG_SERVICE_TASKS_TASK_TENANT_H_
#define SPARSEAGG_SERVICE_TASKS_TASK_TENANT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "host/base/content_hash.h"
#include "service/store/records.h"

namespace sparseagg::service {

class Intake;
struct TaskTenant;

// Bytes of a task without its texts: its entry, its record and its map nodes (measured with 100 000 tasks).
inline constexpr uint64_t kTaskBytes = 900;
// Bytes of a lease without its ids.
inline constexpr uint64_t kLeaseBytes = 250;

// Returns: the memory of a task that was not leased yet.
inline uint64_t TaskBytes(const TaskRecord& record) {
  uint64_t bytes = kTaskBytes + record.tenant.size() + record.id.size() + record.owner.size() +
                   record.spec.payload.size() + record.spec.round.size();
  for (const std::string& label : record.spec.labels) bytes += sizeof(std::string) + label.size();
  return bytes;
}

// Returns: the bytes that the state of a task adds to TaskBytes. Ids count twice: they are in the state and in
// leased_to.
inline uint64_t StateBytes(const TaskStateRecord& state) {
  uint64_t bytes = state.reason.size() + state.submission_id.size() + state.result.size();
  for (const LeaseHolder& holder : state.leases) {
    bytes += kLeaseBytes + 2 * (holder.client_id.size() + holder.lease_id.size());
  }
  return bytes;
}

// The owner of some tasks of one tenant.
struct TaskOwner {
  uint64_t served_at = 0;  // TaskTenant::turn of its latest lease; 0: none yet
  uint64_t num_tasks = 0;  // ended ones included
};

// Owned by TaskTenant::tasks; the registry's lock guards all of it. Durations are times of Clock::Monotonic.
struct TaskEntry {
  uint64_t number = 0;  // in order of creation, also in the store
  TaskTenant* tenant = nullptr;
  TaskOwner* owner = nullptr;
  std::shared_ptr<const TaskRecord> record;  // without the payload when the task has ended
  ContentHash payload_hash;
  TaskStateRecord state;
  std::weak_ptr<Intake> round;   // as of the creation; a later round may have its name. Null: it is gone
  bool round_has_ended = false;  // while the task is leased: the end of the lease cancels it
  absl::Duration lease_end = -absl::InfiniteDuration();   // of the latest lease
  absl::Duration deadline_at = absl::InfiniteDuration();  // when the task fails
  absl::Duration due = absl::InfiniteDuration();          // when the timer looks at it; infinite: never
  uint64_t bytes = 0;                                     // reserved for it
};

// A queue from which a worker takes the best task among those whose labels it has.
//
// Tasks with the same labels form a group, and each group is listed under one of its labels: that under which the
// fewest groups were listed. Best scans only the groups that are listed under a label of the worker: of no other can
// the worker have all labels. A label for each client, to address tasks, costs no more than a few labels.
//
// Owned by TaskTenant. Borrows the entries. Not thread-safe.
// Cost: logarithmic in tasks and groups; Best also linear in the groups under the worker's labels, and in the owners of
// those with the highest priority.
class ReadyTasks {
 public:
  void Add(TaskEntry* task);
  void Remove(TaskEntry* task);
  // Returns: the task that a worker with these labels (ascending) gets: of the highest priority; of the owner served
  // least recently; the oldest. Null if there is none. Removes nothing.
  TaskEntry* Best(absl::Span<const std::string> labels) const;

 private:
  using Labels = std::vector<std::string>;                  // ascending
  using Queue = std::map<uint64_t, TaskEntry*>;             // by number
  using Level = std::map<const TaskOwner*, Queue>;          // the tasks of one priority
  using Levels = std::map<int32_t, Level, std::greater<>>;  // the highest priority first
  using Groups = std::map<Labels, Levels>;

  void BestOf(const Groups& groups, absl::Span<const std::string> labels, TaskEntry** best) const;
  // Returns: the label under which a group with these labels is listed.
  std::string ListedUnder(const Labels& labels) const;

  std::map<std::string, Groups, std::less<>> listed_;  // by label; "": groups without labels
  std::map<Labels, std::string> places_;               // of all groups: the key in listed_
};

// Returns: whether all of `wanted` are in `labels`; both are ascending.
bool HasLabels(absl::Span<const std::string> labels, absl::Span<const std::string> wanted);

// A queue in which a task finds the worker that has waited longest among those that have its labels.
//
// Workers with the same labels form a group, and a group is listed under each of its labels. A task looks at the groups
// under that one of its labels under which the fewest are listed.
//
// Owned by TaskTenant. Not thread-safe. Cost: logarithmic in waits and groups, times the worker's labels; Longest also
// linear in the groups that it looks at.
class WaitingWorkers {
 public:
  // `id`: of the wait; ascending in the order of arrival. `labels`: ascending.
  void Add(uint64_t id, const std::vector<std::string>& labels);
  void Remove(uint64_t id, const std::vector<std::string>& labels);
  // Returns: the smallest id of a wait whose worker has all the labels of `wanted`.
  std::optional<uint64_t> Longest(absl::Span<const std::string> wanted) const;

 private:
  using Labels = std::vector<std::string>;
  using Groups = std::map<Labels, std::set<uint64_t>>;  // ids of waits by labels

  std::set<uint64_t> ids_;
  Groups groups_;
  std::map<std::string, std::set<Groups::const_pointer>, std::less<>> listed_;  // by label: elements of groups_
};

// Owned by TaskRegistry, whose lock guards it; it stays for the life of the registry, since tenants, which come from
// credentials, are few.
struct TaskTenant {
  // The tasks of a round, ended ones included.
  struct RoundTasks {
    std::map<uint64_t, TaskEntry*> tasks;  // by number
    std::weak_ptr<Intake> watched;         // the round of whose end the registry is notified
  };

  std::map<uint64_t, std::unique_ptr<TaskEntry>> tasks;                 // by number
  std::map<absl::string_view, TaskEntry*> by_id;                        // views of TaskRecord::id
  std::map<std::string, RoundTasks, std::less<>> by_round;              // by the round's id
  std::map<std::string, TaskOwner, std::less<>> owners;                 // by name; of all that have a task
  std::map<std::pair<std::string, std::string>, TaskEntry*> leased_to;  // LEASED ones, by client id and lease id
  ReadyTasks ready;                                                     // OPEN ones
  WaitingWorkers waiting;
  uint64_t turn = 0;  // of the latest lease
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TASKS_TASK_TENANT_H_
