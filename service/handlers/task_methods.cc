#include "service/handlers/task_methods.h"

#include <algorithm>
#include <utility>

#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/codec/task_codec.h"
#include "service/handlers/caller.h"
#include "service/handlers/unary_call.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {
namespace {

// A name in a CreateTasksResponse.
constexpr uint64_t kMaxTaskNameBytes = 160;

}  // namespace

std::vector<MethodEntry> TaskMethods::Entries() {
  const auto entry = [this](Method method, void (TaskMethods::*handler)(const Call&)) {
    return MethodEntry{method, [this, handler](const Call& call) { (this->*handler)(call); }};
  };
  return {
      entry(Method::kCreateTasks, &TaskMethods::CreateTasks), entry(Method::kLeaseTask, &TaskMethods::LeaseTask),
      entry(Method::kExtendLease, &TaskMethods::ExtendLease), entry(Method::kCompleteTask, &TaskMethods::CompleteTask),
      entry(Method::kFailTask, &TaskMethods::FailTask),       entry(Method::kGetTask, &TaskMethods::GetTask),
      entry(Method::kListTasks, &TaskMethods::ListTasks),     entry(Method::kCancelTasks, &TaskMethods::CancelTasks),
  };
}

void TaskMethods::Change(const Call& call, Work work) {
  context_.pool.Post([this, call, work = std::move(work)] {
    const absl::Status status = ToStatus([&] { return work(*call); });
    if (!status.ok()) return call->Finish(status);
    tasks_.WhenDurable([call](const absl::Status& durable) {
      FailPoint("before_task_answer");
      call->Finish(durable);
    });
  });
}

void TaskMethods::CreateTasks(const Call& call) {
  return AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    RETURN_IF_ERROR(CheckMessageSize(self.request().size()));
    v1::CreateTasksRequest checked;
    RETURN_IF_ERROR(ParseTaskList(self.request(), &checked));
    RETURN_IF_ERROR(self.caller().ResolveOwner(checked.mutable_owner()));
    RETURN_IF_ERROR(CheckOwner(checked.owner()));
    RETURN_IF_ERROR(DecodeNewTasks(checked, context_.limits).status());
    const auto most = static_cast<uint64_t>(checked.tasks_size()) * kMaxTaskNameBytes;
    // While the call waits it keeps only the message, as CreateRound.
    return PlannedAnswer{most, [this, &self, owner = checked.owner()]() -> absl::Status {
                           v1::CreateTasksRequest request;
                           RETURN_IF_ERROR(ParseTaskList(self.request(), &request));
                           ASSIGN_OR_RETURN(std::vector<NewTask> tasks, DecodeNewTasks(request, context_.limits));
                           ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                                            tasks_.Create(self.caller().identity().tenant, owner, std::move(tasks)));
                           RETURN_IF_ERROR(tasks_.AwaitDurable());
                           LogCall(LogLevel::kInfo, self.caller(), "CreateTasks", request.tasks(0).spec().round(),
                                   owner);
                           v1::CreateTasksResponse answer;
                           for (const std::string& id : ids) answer.add_names(TaskName(id));
                           return Serialize(answer, self.response());
                         }};
  });
}

void TaskMethods::GetTask(const Call& call) {
  return AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::GetTaskRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const std::string id, ParseTaskName(request.task()));
    ASSIGN_OR_RETURN(const TaskSnapshot task, tasks_.Get(self.caller().identity().tenant, id));
    const uint64_t most = kMaxTaskBytes + std::max(task.record->spec.payload.size(), context_.limits.max_task_bytes);
    return PlannedAnswer{most, [this, &self, id]() -> absl::Status {
                           ASSIGN_OR_RETURN(const TaskSnapshot now, tasks_.Get(self.caller().identity().tenant, id));
                           v1::Task answer;
                           EncodeTask(now, TaskParts::kAll, &answer);
                           return Serialize(answer, self.response());
                         }};
  });
}

void TaskMethods::ListTasks(const Call& call) {
  return AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::ListTasksRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const TaskRegistry::Filter filter, DecodeFilter(request));
    ASSIGN_OR_RETURN(const int size, ListSize(request.page_size()));
    const uint64_t most = PageBytes(0);
    return PlannedAnswer{most + kMaxTaskBytes + context_.limits.max_task_bytes,
                         [this, &self, filter, size, token = request.page_token(), most]() -> absl::Status {
                           ASSIGN_OR_RETURN(TaskRegistry::Page page,
                                            tasks_.List(self.caller().identity().tenant, filter,
                                                        static_cast<size_t>(size), most, token));
                           v1::ListTasksResponse list;
                           for (const TaskSnapshot& task : page.tasks) {
                             EncodeTask(task, TaskParts::kWithoutPayload, list.add_tasks());
                           }
                           list.set_next_page_token(std::move(page.next_page_token));
                           return Serialize(list, self.response());
                         }};
  });
}

void TaskMethods::CancelTasks(const Call& call) {
  return Change(call, [this](UnaryCall& self) -> absl::Status {
    RETURN_IF_ERROR(CheckMessageSize(self.request().size()));
    v1::CancelTasksRequest request;
    RETURN_IF_ERROR(ParseTaskList(self.request(), &request));
    RETURN_IF_ERROR(CheckReason(request.reason()));
    if (request.names().empty() == request.round().empty()) {
      return absl::InvalidArgumentError("exactly one of names and round is to be set");
    }
    const std::string reason = request.reason().empty() ? "no reason given" : request.reason();
    const std::string& tenant = self.caller().identity().tenant;
    uint64_t num_cancelled;
    if (request.round().empty()) {
      std::vector<std::string> ids;
      for (const std::string& name : request.names()) {
        ASSIGN_OR_RETURN(std::string id, ParseTaskName(name));
        ids.push_back(std::move(id));
      }
      ASSIGN_OR_RETURN(num_cancelled, tasks_.Cancel(tenant, ids, reason));
    } else {
      ASSIGN_OR_RETURN(const std::string round, ParseRoundName(request.round()));
      ASSIGN_OR_RETURN(num_cancelled, tasks_.CancelRound(tenant, round, reason));
    }
    LogCall(LogLevel::kInfo, self.caller(), "CancelTasks", request.round());
    v1::CancelTasksResponse answer;
    answer.set_num_cancelled(num_cancelled);
    return Serialize(answer, self.response());
  });
}

}  // namespace sparseagg::service
