// Calls of workers about leases, and the long poll LeaseTask.
#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/duration_codec.h"
#include "service/codec/parse.h"
#include "service/codec/task_codec.h"
#include "service/rpc/answer_reactor.h"
#include "service/rpc/call_log.h"
#include "service/rpc/grpc_tasks.h"
#include "service/rpc/serialize.h"

namespace sparseagg::service {
namespace {

using Leased = absl::StatusOr<std::optional<TaskSnapshot>>;

// A call that waits for a task, or until a timeout. No thread waits meanwhile. The permit counts the call among those
// that wait.
class LeaseReactor final : public AnswerReactor {
 public:
  LeaseReactor(TasksService* service, CallContext* context, Permit permit, grpc::ByteBuffer* response)
      : AnswerReactor(&service->context(), context),
        tasks_(service->tasks()),
        permit_(std::move(permit)),
        response_(response) {}

  static LeaseReactor* Start(const std::shared_ptr<LeaseReactor>& self, TaskRegistry::LeaseRequest request,
                             absl::Duration timeout) {
    self->KeepAlive(self);
    self->server_.pool.Post([self, request = std::move(request), timeout] {
      self->wait_ = self->tasks_.Lease(request, timeout, [self](Leased leased) {
        self->server_.pool.Post([self, leased = std::move(leased)] { self->AnswerWhenDurable(self, leased); });
      });
      // OnCancel may have run before wait_ was set.
      if (self->is_abandoned_) self->StopWaiting();
    });
    return self.get();
  }

  void OnCancel() override {
    is_abandoned_ = true;
    if (!StopWaiting()) AnswerReactor::OnCancel();
  }

 private:
  bool StopWaiting() {
    const TaskRegistry::WaitId wait = wait_;
    if (wait == 0 || !tasks_.StopWaiting(wait)) return false;
    Finish(grpc::Status::CANCELLED);
    return true;
  }

  void AnswerWhenDurable(const std::shared_ptr<LeaseReactor>& self, const Leased& leased) {
    if (!leased.ok()) return Finish(ToGrpc(leased.status()));
    if (!leased->has_value()) return Finish(ToGrpc(Serialize(v1::LeaseTaskResponse(), response_)));
    tasks_.WhenDurable([self, task = **leased](const absl::Status& durable) {
      if (!durable.ok()) return self->Finish(ToGrpc(durable));
      self->server_.pool.Post([self, task] {
        self->ReserveAndAnswer(kMostTaskBytes + task.record->spec.payload.size(), Wait::kUnbounded,
                               [reactor = self.get(), task] { return reactor->Answer(task); });
      });
    });
  }

  absl::Status Answer(const TaskSnapshot& task) {
    LogCall(LogLevel::kDebug, context_, "LeaseTask", task.record->spec.round, task.state.leases.back().client_id);
    v1::LeaseTaskResponse answer;
    EncodeTask(task, TaskParts::kAll, answer.mutable_task());
    return Serialize(answer, response_);
  }

  TaskRegistry& tasks_;
  const Permit permit_;
  grpc::ByteBuffer* const response_;
  std::atomic<bool> is_abandoned_ = false;
  std::atomic<TaskRegistry::WaitId> wait_ = 0;
};

}  // namespace

TasksService::Unary* TasksService::LeaseTask(Context* context, const grpc::ByteBuffer* message,
                                             grpc::ByteBuffer* response) {
  TaskRegistry::LeaseRequest lease;
  absl::Duration timeout = server_.limits.max_wait;
  const absl::Status asked = ToStatus([&]() -> absl::Status {
    v1::LeaseTaskRequest request;
    RETURN_IF_ERROR(ParseNames(*message, &request));
    RETURN_IF_ERROR(context->ResolveClientOf(&request));
    RETURN_IF_ERROR(CheckId(request.client_id(), "client_id"));
    ASSIGN_OR_RETURN(lease, DecodeLease(request, server_.limits));
    lease.tenant = context->caller().tenant;
    if (!request.has_timeout()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const absl::Duration wanted, DecodeDuration(request.timeout(), "timeout"));
    timeout = std::min(timeout, wanted);
    return absl::OkStatus();
  });
  if (!asked.ok()) return AtOnce(context, [&] { return asked; });
  if (!server_.lease_waits.TryAcquire()) {
    Unary* const reactor = context->DefaultReactor();
    reactor->Finish(RetryLater(absl::StrCat(server_.lease_waits.limit(),
                                            " calls already wait for tasks, the server's max_waiting_leases, which its "
                                            "memory limit of ",
                                            server_.limits.memory_limit_bytes, " bytes may have lowered"),
                               *context));
    return reactor;
  }
  return LeaseReactor::Start(std::make_shared<LeaseReactor>(this, context, Permit(&server_.lease_waits), response),
                             std::move(lease), timeout);
}

template <typename Request>
TasksService::Unary* TasksService::ChangeLease(
    Context* context, const grpc::ByteBuffer* message, grpc::ByteBuffer* response, uint64_t max_bytes,
    std::function<absl::StatusOr<TaskSnapshot>(const Request&, const LeaseName&)> act) {
  return Change(context, [this, context, message, response, max_bytes, act = std::move(act)]() -> absl::Status {
    Request request;
    RETURN_IF_ERROR(ParseUpTo(*message, max_bytes, &request));
    RETURN_IF_ERROR(context->ResolveClientOf(&request));
    RETURN_IF_ERROR(CheckId(request.client_id(), "client_id"));
    RETURN_IF_ERROR(CheckId(request.lease_id(), "lease_id"));
    LeaseName lease{context->caller().tenant, "", {request.client_id(), request.lease_id()}};
    ASSIGN_OR_RETURN(lease.task_id, ParseTaskName(request.name()));
    ASSIGN_OR_RETURN(const TaskSnapshot task, act(request, lease));
    v1::Task answer;
    EncodeTask(task, TaskParts::kWithoutPayloadAndResult, &answer);
    return Serialize(answer, response);
  });
}

TasksService::Unary* TasksService::ExtendLease(Context* context, const grpc::ByteBuffer* message,
                                               grpc::ByteBuffer* response) {
  return ChangeLease<v1::ExtendLeaseRequest>(
      context, message, response, kMostNamesBytes,
      [this](const v1::ExtendLeaseRequest& request, const LeaseName& lease) -> absl::StatusOr<TaskSnapshot> {
        ASSIGN_OR_RETURN(const absl::Duration duration,
                         DecodeLeaseDuration(request.has_lease_duration(), request.lease_duration(), server_.limits));
        return tasks_.Extend(lease, duration);
      });
}

TasksService::Unary* TasksService::CompleteTask(Context* context, const grpc::ByteBuffer* message,
                                                grpc::ByteBuffer* response) {
  const uint64_t max_result = server_.limits.max_task_bytes;
  const uint64_t max_bytes = max_result == 0 ? message->Length() : max_result + kMostNamesBytes;
  return ChangeLease<v1::CompleteTaskRequest>(
      context, message, response, max_bytes,
      [this](const v1::CompleteTaskRequest& request, const LeaseName& lease) -> absl::StatusOr<TaskSnapshot> {
        if (!request.submission_id().empty()) RETURN_IF_ERROR(CheckId(request.submission_id(), "submission_id"));
        RETURN_IF_ERROR(CheckTaskBytes(request.result().size(), "result", server_.limits));
        return tasks_.Complete(lease, request.submission_id(), request.result());
      });
}

TasksService::Unary* TasksService::FailTask(Context* context, const grpc::ByteBuffer* message,
                                            grpc::ByteBuffer* response) {
  return ChangeLease<v1::FailTaskRequest>(
      context, message, response, kMostNamesBytes,
      [this](const v1::FailTaskRequest& request, const LeaseName& lease) -> absl::StatusOr<TaskSnapshot> {
        RETURN_IF_ERROR(CheckTaskReason(request.reason()));
        return tasks_.Fail(lease, request.reason().empty() ? "no reason given" : request.reason(), request.retry());
      });
}

}  // namespace sparseagg::service
