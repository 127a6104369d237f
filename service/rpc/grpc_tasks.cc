// Calls of coordinators about tasks.
#include "service/rpc/grpc_tasks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/codec/task_codec.h"
#include "service/rpc/call_log.h"
#include "service/rpc/serialize.h"

namespace sparseagg::service {
namespace {

constexpr int kDefaultListSize = 100;
constexpr int kMaxListSize = 1000;
// A name in a CreateTasksResponse.
constexpr uint64_t kMostNameBytes = 160;

}  // namespace

TasksService::TasksService(ServerContext* server, TaskRegistry* tasks) : ApiService(server), tasks_(*tasks) {
  ServeUnary(Method::kCreateTasks, &TasksService::CreateTasks);
  ServeUnary(Method::kLeaseTask, &TasksService::LeaseTask);
  ServeUnary(Method::kExtendLease, &TasksService::ExtendLease);
  ServeUnary(Method::kCompleteTask, &TasksService::CompleteTask);
  ServeUnary(Method::kFailTask, &TasksService::FailTask);
  ServeUnary(Method::kGetTask, &TasksService::GetTask);
  ServeUnary(Method::kListTasks, &TasksService::ListTasks);
  ServeUnary(Method::kCancelTasks, &TasksService::CancelTasks);
}

TasksService::Unary* TasksService::Change(Context* context, std::function<absl::Status()> work) {
  Unary* const reactor = context->DefaultReactor();
  server_.pool.Post([this, reactor, work = std::move(work)] {
    const absl::Status status = ToStatus(work);
    if (!status.ok()) return reactor->Finish(ToGrpc(status));
    tasks_.WhenDurable([reactor](const absl::Status& durable) { reactor->Finish(ToGrpc(durable)); });
  });
  return reactor;
}

TasksService::Unary* TasksService::CreateTasks(Context* context, const grpc::ByteBuffer* message,
                                               grpc::ByteBuffer* response) {
  return AnswerOnPool(context, message, [this, context, message, response]() -> absl::StatusOr<PlannedAnswer> {
    RETURN_IF_ERROR(CheckMessageSize(message->Length()));
    v1::CreateTasksRequest checked;
    RETURN_IF_ERROR(ParseTaskList(*message, &checked));
    RETURN_IF_ERROR(context->ResolveOwner(checked.mutable_owner()));
    RETURN_IF_ERROR(CheckOwner(checked.owner()));
    RETURN_IF_ERROR(DecodeNewTasks(checked, server_.limits).status());
    const auto most = static_cast<uint64_t>(checked.tasks_size()) * kMostNameBytes;
    // While the call waits it keeps only the message, as CreateRound.
    return PlannedAnswer{most, [this, context, message, response, owner = checked.owner()]() -> absl::Status {
                           v1::CreateTasksRequest request;
                           RETURN_IF_ERROR(ParseTaskList(*message, &request));
                           ASSIGN_OR_RETURN(std::vector<NewTask> tasks, DecodeNewTasks(request, server_.limits));
                           ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                                            tasks_.Create(context->caller().tenant, owner, std::move(tasks)));
                           RETURN_IF_ERROR(tasks_.AwaitDurable());
                           LogCall(LogLevel::kInfo, *context, "CreateTasks", request.tasks(0).spec().round(), owner);
                           v1::CreateTasksResponse answer;
                           for (const std::string& id : ids) answer.add_names(TaskName(id));
                           return Serialize(answer, response);
                         }};
  });
}

TasksService::Unary* TasksService::GetTask(Context* context, const grpc::ByteBuffer* message,
                                           grpc::ByteBuffer* response) {
  return AnswerOnPool(context, message, [this, context, message, response]() -> absl::StatusOr<PlannedAnswer> {
    v1::GetTaskRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    ASSIGN_OR_RETURN(const std::string id, ParseTaskName(request.name()));
    ASSIGN_OR_RETURN(const TaskSnapshot task, tasks_.Get(context->caller().tenant, id));
    const uint64_t most = kMostTaskBytes + std::max(task.record->spec.payload.size(), server_.limits.max_task_bytes);
    return PlannedAnswer{most, [this, context, id, response]() -> absl::Status {
                           ASSIGN_OR_RETURN(const TaskSnapshot now, tasks_.Get(context->caller().tenant, id));
                           v1::Task answer;
                           EncodeTask(now, TaskParts::kAll, &answer);
                           return Serialize(answer, response);
                         }};
  });
}

TasksService::Unary* TasksService::ListTasks(Context* context, const grpc::ByteBuffer* message,
                                             grpc::ByteBuffer* response) {
  return AnswerOnPool(context, message, [this, context, message, response]() -> absl::StatusOr<PlannedAnswer> {
    v1::ListTasksRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    if (request.page_size() < 0) {
      return absl::InvalidArgumentError(absl::StrCat("page_size ", request.page_size(), " is negative"));
    }
    ASSIGN_OR_RETURN(const TaskRegistry::Filter filter, DecodeFilter(request));
    const int size = request.page_size() == 0 ? kDefaultListSize : std::min(request.page_size(), kMaxListSize);
    const uint64_t most = PageBytes(0);
    return PlannedAnswer{most + kMostTaskBytes + server_.limits.max_task_bytes,
                         [this, context, filter, size, token = request.page_token(), most, response]() -> absl::Status {
                           ASSIGN_OR_RETURN(
                               TaskRegistry::Page page,
                               tasks_.List(context->caller().tenant, filter, static_cast<size_t>(size), most, token));
                           v1::ListTasksResponse list;
                           for (const TaskSnapshot& task : page.tasks) {
                             EncodeTask(task, TaskParts::kWithoutPayload, list.add_tasks());
                           }
                           list.set_next_page_token(std::move(page.next_page_token));
                           return Serialize(list, response);
                         }};
  });
}

TasksService::Unary* TasksService::CancelTasks(Context* context, const grpc::ByteBuffer* message,
                                               grpc::ByteBuffer* response) {
  return Change(context, [this, context, message, response]() -> absl::Status {
    RETURN_IF_ERROR(CheckMessageSize(message->Length()));
    v1::CancelTasksRequest request;
    RETURN_IF_ERROR(ParseTaskList(*message, &request));
    RETURN_IF_ERROR(CheckTaskReason(request.reason()));
    if (request.names().empty() == request.round().empty()) {
      return absl::InvalidArgumentError("exactly one of names and round is to be set");
    }
    const std::string reason = request.reason().empty() ? "no reason given" : request.reason();
    const std::string& tenant = context->caller().tenant;
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
    LogCall(LogLevel::kInfo, *context, "CancelTasks", request.round());
    v1::CancelTasksResponse answer;
    answer.set_num_cancelled(num_cancelled);
    return Serialize(answer, response);
  });
}

}  // namespace sparseagg::service
