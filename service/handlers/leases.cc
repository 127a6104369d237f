// Methods of workers: leases, and the long poll LeaseTask. No thread waits meanwhile.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/base/fail_point.h"
#include "service/base/refusals.h"
#include "service/codec/parse.h"
#include "service/codec/spec_codec.h"
#include "service/codec/task_codec.h"
#include "service/handlers/caller.h"
#include "service/handlers/task_methods.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {
namespace {

using Leased = absl::StatusOr<std::optional<TaskSnapshot>>;

// The wait of a call, which begins on the pool, perhaps after the peer has gone.
struct LeaseWait {
  explicit LeaseWait(TaskRegistry* registry) : tasks(*registry) {}

  // Returns: true if the wait has ended by this call.
  bool Stop() {
    const TaskRegistry::WaitId wait = id;
    return wait != 0 && tasks.StopWaiting(wait);
  }

  TaskRegistry& tasks;
  std::atomic<bool> is_abandoned = false;
  std::atomic<TaskRegistry::WaitId> id = 0;  // 0: it has not begun
};

}  // namespace

void TaskMethods::LeaseTask(const Call& call) {
  TaskRegistry::LeaseRequest lease;
  absl::Duration timeout = context_.limits.max_wait;
  const absl::Status asked = ToStatus([&]() -> absl::Status {
    v1::LeaseTaskRequest request;
    RETURN_IF_ERROR(ParseNames(call->request(), &request));
    RETURN_IF_ERROR(call->caller().ResolveClientOf(&request));
    RETURN_IF_ERROR(CheckId(request.client_id(), "client_id"));
    ASSIGN_OR_RETURN(lease, DecodeLease(request, context_.limits));
    lease.tenant = call->caller().identity().tenant;
    if (!request.has_timeout()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const absl::Duration wanted, DecodeDuration(request.timeout(), "timeout"));
    timeout = std::min(timeout, wanted);
    return absl::OkStatus();
  });
  if (!asked.ok()) return call->Finish(asked);
  const std::shared_ptr<const void> permit = context_.lease_waits.TryAcquire(call->caller().PeerName());
  if (permit == nullptr) {
    return call->Finish(RetryLater(absl::StrCat(context_.lease_waits.DescribeFull(),
                                                " already wait for tasks; the server's max_waiting_leases is ",
                                                context_.lease_waits.limit(), ", which its memory limit of ",
                                                context_.limits.memory_limit_bytes, " bytes may have lowered")));
  }
  const auto wait = std::make_shared<LeaseWait>(&tasks_);
  call->StopWith([wait] {
    wait->is_abandoned = true;
    return wait->Stop();
  });
  context_.pool.Post([this, call, wait, permit, lease = std::move(lease), timeout] {
    wait->id = tasks_.Lease(lease, timeout, [this, call, permit](Leased leased) {
      context_.pool.Post([this, call, permit, leased = std::move(leased)] { AnswerLease(call, leased); });
    });
    if (wait->is_abandoned && wait->Stop()) call->Finish(absl::CancelledError());
  });
}

void TaskMethods::AnswerLease(const Call& call, const Leased& leased) {
  if (!leased.ok()) return call->Finish(leased.status());
  if (!leased->has_value()) return call->Finish(Serialize(v1::LeaseTaskResponse(), call->response()));
  tasks_.WhenDurable([this, call, task = **leased](const absl::Status& durable) {
    FailPoint("before_lease_answer");
    if (!durable.ok()) return call->Finish(durable);
    context_.pool.Post([this, call, task] {
      const auto answer = [this, &self = *call, task]() -> absl::Status {
        LogCall(LogLevel::kDebug, self.caller(), "LeaseTask", task.record->spec.round,
                task.state.leases.back().client_id);
        v1::LeaseTaskResponse response;
        EncodeTask(task, TaskParts::kAll, response.mutable_task());
        const std::optional<uint64_t> base_version = tasks_.BaseVersionOf(task);
        if (base_version.has_value()) response.mutable_task()->set_base_version(*base_version);
        return Serialize(response, self.response());
      };
      call->ReserveAndAnswer(kMaxTaskBytes + task.record->spec.payload.size(), UnaryCall::Wait::kUnbounded, answer);
    });
  });
}

template <typename Request>
void TaskMethods::ChangeLease(const Call& call, uint64_t max_bytes,
                              std::function<absl::StatusOr<TaskSnapshot>(const Request&, const LeaseName&)> act) {
  Change(call, [max_bytes, act = std::move(act)](UnaryCall& self) -> absl::Status {
    Request request;
    RETURN_IF_ERROR(ParseUpTo(self.request(), max_bytes, &request));
    RETURN_IF_ERROR(self.caller().ResolveClientOf(&request));
    RETURN_IF_ERROR(CheckId(request.client_id(), "client_id"));
    RETURN_IF_ERROR(CheckId(request.lease_id(), "lease_id"));
    LeaseName lease{self.caller().identity().tenant, "", {request.client_id(), request.lease_id()}};
    ASSIGN_OR_RETURN(lease.task_id, ParseTaskName(request.task()));
    ASSIGN_OR_RETURN(const TaskSnapshot task, act(request, lease));
    v1::Task answer;
    EncodeTask(task, TaskParts::kWithoutPayloadAndResult, &answer);
    return Serialize(answer, self.response());
  });
}

void TaskMethods::ExtendLease(const Call& call) {
  ChangeLease<v1::ExtendLeaseRequest>(
      call, kMaxNamesBytes,
      [this](const v1::ExtendLeaseRequest& request, const LeaseName& lease) -> absl::StatusOr<TaskSnapshot> {
        ASSIGN_OR_RETURN(const absl::Duration duration,
                         DecodeLeaseDuration(request.has_lease_duration(), request.lease_duration(), context_.limits));
        return tasks_.Extend(lease, duration);
      });
}

void TaskMethods::CompleteTask(const Call& call) {
  const uint64_t max_result = context_.limits.max_task_bytes;
  const uint64_t max_bytes = max_result == 0 ? call->request().size() : max_result + kMaxNamesBytes;
  ChangeLease<v1::CompleteTaskRequest>(
      call, max_bytes,
      [this](const v1::CompleteTaskRequest& request, const LeaseName& lease) -> absl::StatusOr<TaskSnapshot> {
        if (!request.submission_id().empty()) RETURN_IF_ERROR(CheckId(request.submission_id(), "submission_id"));
        RETURN_IF_ERROR(CheckTaskBytes(request.result().size(), "result", context_.limits));
        return tasks_.Complete(lease, request.submission_id(), request.result());
      });
}

void TaskMethods::FailTask(const Call& call) {
  ChangeLease<v1::FailTaskRequest>(
      call, kMaxNamesBytes,
      [this](const v1::FailTaskRequest& request, const LeaseName& lease) -> absl::StatusOr<TaskSnapshot> {
        RETURN_IF_ERROR(CheckReason(request.reason()));
        return tasks_.Fail(lease, request.reason().empty() ? "no reason given" : request.reason(), request.retry());
      });
}

}  // namespace sparseagg::service
