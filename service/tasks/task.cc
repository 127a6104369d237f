#include "service/tasks/task.h"

namespace sparseagg::service {

absl::string_view Name(TaskState state) {
  switch (state) {
    case TaskState::kOpen:
      return "OPEN";
    case TaskState::kLeased:
      return "LEASED";
    case TaskState::kCompleted:
      return "COMPLETED";
    case TaskState::kFailed:
      return "FAILED";
    case TaskState::kCancelled:
      break;
  }
  return "CANCELLED";
}

}  // namespace sparseagg::service
