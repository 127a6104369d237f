// Tasks as their callers see them.
#ifndef SPARSEAGG_SERVICE_TASKS_TASK_H_
#define SPARSEAGG_SERVICE_TASKS_TASK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/admission/memory_budget.h"
#include "service/base/clock.h"
#include "service/base/limits.h"
#include "service/base/metrics.h"
#include "service/base/worker_pool.h"
#include "service/rounds/registry.h"
#include "service/store/records.h"
#include "service/store/store.h"

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

// References to what the server owns, which outlives the task store. All parts are thread-safe.
struct TaskServices {
  const Clock& clock;      // leases, deadlines and timeouts
  const Limits& limits;    // max_open_tasks, max_task_bytes, max_lease, max_result_ttl
  MemoryBudget& budget;    // the memory that tasks keep, beside that of rounds
  Timer& timer;            // the next lease, deadline or timeout that ends
  WorkerPool& pool;        // what the timer begins
  Metrics& metrics;        // counts what happens to tasks
  Registry& rounds;        // the rounds that tasks belong to
  Store* store = nullptr;  // what survives a restart; null: nothing does
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TASKS_TASK_H_
