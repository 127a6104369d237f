#include "service/tasks/task_tenant.h"

#include <algorithm>
#include <tuple>

namespace sparseagg::service {

bool HasLabels(absl::Span<const std::string> labels, absl::Span<const std::string> wanted) {
  return std::includes(labels.begin(), labels.end(), wanted.begin(), wanted.end());
}

std::string ReadyTasks::ListedUnder(const Labels& labels) const {
  if (labels.empty()) return "";
  const auto num_groups = [this](const std::string& label) {
    const auto found = listed_.find(label);
    return found == listed_.end() ? 0 : found->second.size();
  };
  return *std::min_element(labels.begin(), labels.end(),
                           [&](const std::string& a, const std::string& b) { return num_groups(a) < num_groups(b); });
}

void ReadyTasks::Add(TaskEntry* task) {
  const Labels& labels = task->record->spec.labels;
  auto place = places_.find(labels);
  if (place == places_.end()) place = places_.emplace(labels, ListedUnder(labels)).first;
  listed_[place->second][labels][task->record->spec.priority][task->owner].emplace(task->number, task);
}

void ReadyTasks::Remove(TaskEntry* task) {
  const TaskSpec& spec = task->record->spec;
  const auto place = places_.find(spec.labels);
  const auto listed = listed_.find(place->second);
  const auto group = listed->second.find(spec.labels);
  const auto level = group->second.find(spec.priority);
  const auto queue = level->second.find(task->owner);
  queue->second.erase(task->number);
  if (!queue->second.empty()) return;
  level->second.erase(queue);
  if (!level->second.empty()) return;
  group->second.erase(level);
  if (!group->second.empty()) return;
  listed->second.erase(group);
  if (listed->second.empty()) listed_.erase(listed);
  places_.erase(place);
}

TaskEntry* ReadyTasks::Best(absl::Span<const std::string> labels) const {
  TaskEntry* best = nullptr;
  const auto look_under = [&](const std::string& label) {
    const auto listed = listed_.find(label);
    if (listed != listed_.end()) BestOf(listed->second, labels, &best);
  };
  look_under("");
  for (const std::string& label : labels) look_under(label);
  return best;
}

void ReadyTasks::BestOf(const Groups& groups, absl::Span<const std::string> labels, TaskEntry** best) const {
  const auto rank = [](const TaskEntry& task) {
    return std::make_tuple(-int64_t{task.record->spec.priority}, task.owner->served_at, task.number);
  };
  for (const auto& [wanted, levels] : groups) {
    if (!HasLabels(labels, wanted)) continue;
    for (const auto& [owner, queue] : levels.begin()->second) {
      TaskEntry* const first = queue.begin()->second;
      if (*best == nullptr || rank(*first) < rank(**best)) *best = first;
    }
  }
}

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
