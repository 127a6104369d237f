// The open tasks of a tenant, in the order in which workers get them.
#ifndef SPARSEAGG_SERVICE_TASKS_READY_TASKS_H_
#define SPARSEAGG_SERVICE_TASKS_READY_TASKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "service/tasks/task_entry.h"

namespace sparseagg::service {

// A queue from which a worker takes the best task among those whose labels it has.
//
// Tasks with the same labels form a group, and each group is listed under one of its labels: that under which the
// fewest groups were listed. A worker can have the labels of those groups only that are listed under a label of the
// worker, so that Best looks at these. A label for each client, to address tasks, costs no more than a few labels.
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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TASKS_READY_TASKS_H_
