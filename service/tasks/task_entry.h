// A task inside the registry.
#ifndef SPARSEAGG_SERVICE_TASKS_TASK_ENTRY_H_
#define SPARSEAGG_SERVICE_TASKS_TASK_ENTRY_H_

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "host/base/content_hash.h"
#include "service/store/task_records.h"

namespace sparseagg::service {

class Round;
struct TaskTenant;

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
  std::weak_ptr<Round> round;                             // a later one of this name is another one; null: it is gone
  bool round_has_ended = false;                           // the end of the lease cancels the task
  absl::Duration lease_end = -absl::InfiniteDuration();   // of the latest lease
  absl::Duration deadline_at = absl::InfiniteDuration();  // when the task fails
  absl::Duration due = absl::InfiniteDuration();          // when the timer looks at it; infinite: never
  uint64_t bytes = 0;                                     // reserved for it
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TASKS_TASK_ENTRY_H_
