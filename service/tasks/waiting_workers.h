// The calls of a tenant that wait for a task.
#ifndef SPARSEAGG_SERVICE_TASKS_WAITING_WORKERS_H_
#define SPARSEAGG_SERVICE_TASKS_WAITING_WORKERS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace sparseagg::service {

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TASKS_WAITING_WORKERS_H_
