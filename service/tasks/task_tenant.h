// The tasks of one tenant.
#ifndef SPARSEAGG_SERVICE_TASKS_TASK_TENANT_H_
#define SPARSEAGG_SERVICE_TASKS_TASK_TENANT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "service/tasks/ready_tasks.h"
#include "service/tasks/task_entry.h"
#include "service/tasks/waiting_workers.h"

namespace sparseagg::service {

class Round;

// Owned by TaskRegistry, whose lock guards it; it stays for the life of the registry. Tenants come from credentials, so
// that they are few.
struct TaskTenant {
  // The tasks of a round, ended ones included.
  struct RoundTasks {
    std::map<uint64_t, TaskEntry*> tasks;  // by number
    std::weak_ptr<Round> watched;          // the end of this round will be told to the registry
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
