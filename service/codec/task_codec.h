// Codec of tasks: requests, names and snapshots.
#ifndef SPARSEAGG_SERVICE_CODEC_TASK_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_TASK_CODEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/base/limits.h"
#include "service/tasks/task.h"
#include "service/tasks/task_registry.h"
#include "sparseagg/v1/tasks.pb.h"

namespace sparseagg::service {

// Returns: "tasks/ID".
std::string TaskName(absl::string_view id);
// Returns: the id in "tasks/ID". Errors: INVALID_ARGUMENT: not a task name.
absl::StatusOr<std::string> ParseTaskName(absl::string_view name);

// Checks and completes all tasks of a request.
// Errors: INVALID_ARGUMENT, which names the task by its position, and the field. RESOURCE_EXHAUSTED: a payload beyond
// max_task_bytes.
absl::StatusOr<std::vector<NewTask>> DecodeNewTasks(const v1::CreateTasksRequest& request, const Limits& limits);
// Errors: INVALID_ARGUMENT.
absl::Status CheckOwner(absl::string_view owner);
// Everything but the tenant and the client id, which is not checked here. Errors: INVALID_ARGUMENT.
absl::StatusOr<TaskRegistry::LeaseRequest> DecodeLease(const v1::LeaseTaskRequest& request, const Limits& limits);
// Returns: how long a lease lasts that was asked for with the field of a request; unset: the default.
// Errors: INVALID_ARGUMENT: below kMinLease or above max_lease.
absl::StatusOr<absl::Duration> DecodeLeaseDuration(bool is_set, const google::protobuf::Duration& wire,
                                                   const Limits& limits);
// Errors: INVALID_ARGUMENT: an unknown state, or not a name of a round.
absl::StatusOr<TaskRegistry::Filter> DecodeFilter(const v1::ListTasksRequest& request);
// Checks the size of a payload or a result; `what` is the place. Errors: RESOURCE_EXHAUSTED.
absl::Status CheckTaskBytes(uint64_t bytes, absl::string_view what, const Limits& limits);

enum class TaskParts { kAll, kWithoutPayload, kWithoutPayloadAndResult };
void EncodeTask(const TaskSnapshot& task, TaskParts parts, v1::Task* wire);
// The most bytes of a task's message without payload and result.
inline constexpr uint64_t kMaxTaskBytes = 8192;

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_TASK_CODEC_H_
