// The gRPC service sparseagg.v1.Tasks.
#ifndef SPARSEAGG_SERVICE_RPC_GRPC_TASKS_H_
#define SPARSEAGG_SERVICE_RPC_GRPC_TASKS_H_

#include <functional>

#include "service/rpc/api_service.h"
#include "service/tasks/task_registry.h"

namespace sparseagg::service {

// The handlers of the service. Owned by the server. Borrows the server context and the task registry. Thread-safe.
class TasksService final : public ApiService {
 public:
  TasksService(ServerContext* server, TaskRegistry* tasks);

  // grpc_tasks.cc
  Unary* CreateTasks(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* GetTask(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* ListTasks(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* CancelTasks(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  // grpc_leases.cc
  Unary* LeaseTask(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* ExtendLease(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* CompleteTask(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);
  Unary* FailTask(Context*, const grpc::ByteBuffer*, grpc::ByteBuffer* response);

  TaskRegistry& tasks() { return tasks_; }

 private:
  // Runs `work`, which changes tasks, on the pool, and finishes the call when the change is durable.
  Unary* Change(Context* context, std::function<absl::Status()> work);
  // The same for a call about a lease: parses the request of up to `max_bytes`, runs `act` and answers with the task.
  template <typename Request>
  Unary* ChangeLease(Context* context, const grpc::ByteBuffer* message, grpc::ByteBuffer* response, uint64_t max_bytes,
                     std::function<absl::StatusOr<TaskSnapshot>(const Request&, const LeaseName&)> act);

  TaskRegistry& tasks_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_GRPC_TASKS_H_
