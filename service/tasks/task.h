// Tasks as their callers see them.
#ifndef SPARSEAGG_SERVICE_TASKS_TASK_H_
#define SPARSEAGG_SERVICE_TASKS_TASK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/store/task_records.h"

namespace sparseagg::service {

// Bounds that are the same on every server; docs/tasks.md lists them.
inline constexpr size_t kMaxTaskLabels = 16;
inline constexpr uint32_t kDefaultTaskAttempts = 10;
inline constexpr uint32_t kMaxTaskAttempts = 1000;
inline constexpr size_t kMaxTasksPerCall = 1000;
inline constexpr absl::Duration kMinLease = absl::Milliseconds(10);
inline constexpr absl::Duration kDefaultLease = absl::Minutes(1);

constexpr absl::string_view Name(TaskState state) {
  constexpr absl::string_view kNames[kNumTaskStates] = {"OPEN", "LEASED", "COMPLETED", "FAILED", "CANCELLED"};
  return kNames[static_cast<size_t>(state)];
}

// True for the three states that never change.
constexpr bool HasEnded(TaskState state) { return state != TaskState::kOpen && state != TaskState::kLeased; }

// A task to be created.
struct NewTask {
  std::string id;  // empty: the registry chooses one
  TaskSpec spec;
};

// The lease that a call is about.
struct LeaseName {
  std::string tenant;
  std::string task_id;
  LeaseHolder holder;
};

// A task at one moment; it does not change when the task does.
struct TaskSnapshot {
  std::shared_ptr<const TaskRecord> record;  // without the payload when the task has ended
  TaskStateRecord state;
  absl::Duration lease_remaining;                 // of the latest lease; 0: it is over
  absl::Time expire_time = absl::InfinitePast();  // when the ended task is deleted
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TASKS_TASK_H_
