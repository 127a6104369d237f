// A blocking gRPC client of the service Tasks for tests.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_TASK_CLIENT_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_TASK_CLIENT_H_

#include <google/protobuf/util/time_util.h>
#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sparseagg/v1/tasks.grpc.pb.h"
#include "tests/service/support/client.h"

namespace sparseagg::service {

// Every member makes a call and blocks until it ends. The lease id is always "lease". Thread-safe.
class TaskClient {
 public:
  explicit TaskClient(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::Tasks::NewStub(channel)) {}

  absl::Status Create(const std::string& id, v1::TaskSpec spec = {}, const std::string& owner = "") {
    v1::CreateTasksRequest request;
    request.set_owner(owner);
    request.add_tasks()->set_task_id(id);
    *request.mutable_tasks(0)->mutable_spec() = std::move(spec);
    return Call(&v1::Tasks::Stub::CreateTasks, request).status();
  }
  // Without a task: no name.
  absl::StatusOr<v1::Task> Lease(const std::string& client, absl::Duration timeout = absl::ZeroDuration(),
                                 absl::Duration lease = absl::Minutes(1), const std::vector<std::string>& labels = {}) {
    v1::LeaseTaskRequest request;
    request.set_client_id(client);
    request.set_lease_id("lease");
    for (const std::string& label : labels) request.add_labels(label);
    *request.mutable_timeout() = ToWire(timeout);
    *request.mutable_lease_duration() = ToWire(lease);
    auto answer = Call(&v1::Tasks::Stub::LeaseTask, request);
    if (!answer.ok()) return answer.status();
    return answer->task();
  }
  absl::StatusOr<v1::Task> Extend(const std::string& id, const std::string& client, absl::Duration lease) {
    auto request = About<v1::ExtendLeaseRequest>(id, client);
    *request.mutable_lease_duration() = ToWire(lease);
    return Call(&v1::Tasks::Stub::ExtendLease, request);
  }
  absl::StatusOr<v1::Task> Complete(const std::string& id, const std::string& client, const std::string& result = "",
                                    const std::string& submission = "") {
    auto request = About<v1::CompleteTaskRequest>(id, client);
    request.set_result(result);
    request.set_submission_id(submission);
    return Call(&v1::Tasks::Stub::CompleteTask, request);
  }
  absl::StatusOr<v1::Task> Fail(const std::string& id, const std::string& client, bool retry) {
    auto request = About<v1::FailTaskRequest>(id, client);
    request.set_reason("no luck");
    request.set_retry(retry);
    return Call(&v1::Tasks::Stub::FailTask, request);
  }
  absl::StatusOr<v1::Task> Get(const std::string& id) {
    v1::GetTaskRequest request;
    request.set_task("tasks/" + id);
    return Call(&v1::Tasks::Stub::GetTask, request);
  }
  absl::StatusOr<v1::ListTasksResponse> List(const v1::ListTasksRequest& request = {}) {
    return Call(&v1::Tasks::Stub::ListTasks, request);
  }
  absl::StatusOr<uint64_t> Cancel(const v1::CancelTasksRequest& request) {
    auto answer = Call(&v1::Tasks::Stub::CancelTasks, request);
    if (!answer.ok()) return answer.status();
    return answer->num_cancelled();
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::Tasks::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                        Response*),
                                const Request& request) {
    grpc::ClientContext context;
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

 private:
  static google::protobuf::Duration ToWire(absl::Duration duration) {
    return google::protobuf::util::TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(duration));
  }
  template <typename Request>
  static Request About(const std::string& id, const std::string& client) {
    Request request;
    request.set_task("tasks/" + id);
    request.set_client_id(client);
    request.set_lease_id("lease");
    return request;
  }

  const std::unique_ptr<v1::Tasks::Stub> stub_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_TASK_CLIENT_H_
