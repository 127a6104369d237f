// The methods of sparseagg.v1.Tasks, whatever the transport.
#ifndef SPARSEAGG_SERVICE_HANDLERS_TASK_METHODS_H_
#define SPARSEAGG_SERVICE_HANDLERS_TASK_METHODS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "service/auth/authorize.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/model_methods.h"
#include "service/handlers/unary_call.h"
#include "service/tasks/task_registry.h"

namespace sparseagg::service {

// Outlive all calls. Borrow the context and the registry. Thread-safe.
class TaskMethods : public Methods {
 public:
  TaskMethods(ApiContext* context, TaskRegistry* tasks) : Methods(context), tasks_(*tasks) {}

  // Returns: all methods.
  std::vector<MethodEntry> Entries();

 private:
  // task_methods.cc: for coordinators
  void CreateTasks(const Call& call);
  void GetTask(const Call& call);
  void ListTasks(const Call& call);
  void CancelTasks(const Call& call);
  // leases.cc: for workers
  void LeaseTask(const Call& call);
  void ExtendLease(const Call& call);
  void CompleteTask(const Call& call);
  void FailTask(const Call& call);

  void AnswerLease(const Call& call, const absl::StatusOr<std::optional<TaskSnapshot>>& leased);
  // Runs `work`, which changes tasks, on the pool, and finishes the call when the change is durable.
  void Change(const Call& call, Work work);
  // The same for a call about a lease: parses the request of up to `max_bytes`, runs `act` and answers with the task.
  template <typename Request>
  void ChangeLease(const Call& call, uint64_t max_bytes,
                   std::function<absl::StatusOr<TaskSnapshot>(const Request&, const LeaseName&)> act);

  TaskRegistry& tasks_;
};

// Owned by Server, which outlives all calls. Immutable, and so thread-safe.
struct Api {
  Api(ApiContext* context, Registry* registry, StreamRegistry* streams, TaskRegistry* tasks_registry,
      ModelRegistry* models_registry)
      : aggregation(context, registry, streams),
        tasks(context, tasks_registry),
        models(context, registry, models_registry) {
    for (const auto& entries : {aggregation.Entries(), tasks.Entries(), models.Entries()}) {
      for (const MethodEntry& entry : entries) handlers[static_cast<size_t>(entry.method)] = entry.handler;
    }
  }

  AggregationMethods aggregation;
  TaskMethods tasks;
  ModelMethods models;
  std::array<MethodHandler, kNumMethods> handlers;  // by Method; empty for AggregationMethods::IsLarge and streams
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_TASK_METHODS_H_
