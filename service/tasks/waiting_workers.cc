#include "service/tasks/waiting_workers.h"

#include "service/tasks/ready_tasks.h"

namespace sparseagg::service {

void WaitingWorkers::Add(uint64_t id, const std::vector<std::string>& labels) {
  ids_.insert(id);
  const auto [group, is_new] = groups_.try_emplace(labels);
  group->second.insert(id);
  if (!is_new) return;
  for (const std::string& label : labels) listed_[label].insert(&*group);
}

void WaitingWorkers::Remove(uint64_t id, const std::vector<std::string>& labels) {
  ids_.erase(id);
  const auto group = groups_.find(labels);
  group->second.erase(id);
  if (!group->second.empty()) return;
  for (const std::string& label : labels) {
    const auto listed = listed_.find(label);
    listed->second.erase(&*group);
    if (listed->second.empty()) listed_.erase(listed);
  }
  groups_.erase(group);
}

std::optional<uint64_t> WaitingWorkers::Longest(absl::Span<const std::string> wanted) const {
  if (wanted.empty()) return ids_.empty() ? std::nullopt : std::optional(*ids_.begin());
  const std::set<Groups::const_pointer>* fewest = nullptr;
  for (const std::string& label : wanted) {
    const auto listed = listed_.find(label);
    if (listed == listed_.end()) return std::nullopt;
    if (fewest == nullptr || listed->second.size() < fewest->size()) fewest = &listed->second;
  }
  std::optional<uint64_t> longest;
  for (const Groups::const_pointer group : *fewest) {
    const uint64_t first = *group->second.begin();
    if ((!longest.has_value() || first < *longest) && HasLabels(group->first, wanted)) longest = first;
  }
  return longest;
}

}  // namespace sparseagg::service
