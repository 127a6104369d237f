// What the store keeps of tasks, and its coding.
#ifndef SPARSEAGG_SERVICE_STORE_TASK_RECORDS_H_
#define SPARSEAGG_SERVICE_STORE_TASK_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sparseagg::service {

enum class TaskState {
  kOpen,    // waits for a worker
  kLeased,  // a worker has it
  kCompleted,
  kFailed,
  kCancelled,
};
inline constexpr size_t kNumTaskStates = 5;

// What is to be done.
struct TaskSpec {
  std::string payload;
  std::vector<std::string> labels;  // what a worker must have: ascending, each once
  int32_t priority = 0;
  absl::Duration deadline = absl::InfiniteDuration();  // from the creation
  uint32_t max_attempts = 0;
  std::string round;   // id of the round that a submission has to be in; empty: none
  absl::Duration ttl;  // how long the ended task is kept
};

// A task as it was created. It never changes.
struct TaskRecord {
  std::string tenant;
  std::string id;
  std::string owner;  // the coordinator
  TaskSpec spec;
  absl::Time create_time;
};

// Who has, or had, a lease of a task.
struct LeaseHolder {
  std::string client_id;
  std::string lease_id;

  friend bool operator==(const LeaseHolder& a, const LeaseHolder& b) {
    return a.client_id == b.client_id && a.lease_id == b.lease_id;
  }
};

// What has happened to a task since.
struct TaskStateRecord {
  TaskState state = TaskState::kOpen;
  // One for each attempt, the latest one last; of an ended task only that which ended it. Its size is the number of
  // attempts of a task that has not ended.
  std::vector<LeaseHolder> leases;
  uint32_t attempts = 0;
  absl::Time lease_expire_time = absl::InfinitePast();       // of the latest lease
  absl::Duration lease_duration = absl::InfiniteDuration();  // from its grant or extension; infinite: not recorded
  std::string reason;                          // kFailed, kCancelled: why; kOpen: of the latest failed attempt
  std::string submission_id;                   // kCompleted
  std::string result;                          // kCompleted
  absl::Time end_time = absl::InfinitePast();  // of the last three states
};

std::string EncodeRecord(const TaskRecord& record);
std::string EncodeRecord(const TaskStateRecord& record);

// Errors: DATA_LOSS: the bytes are not such a record.
absl::StatusOr<TaskRecord> DecodeTaskRecord(absl::string_view bytes);
absl::StatusOr<TaskStateRecord> DecodeTaskStateRecord(absl::string_view bytes);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_TASK_RECORDS_H_
