// The unary methods of all services, by name.
#ifndef SPARSEAGG_SERVICE_HANDLERS_API_H_
#define SPARSEAGG_SERVICE_HANDLERS_API_H_

#include <array>

#include "service/auth/authorize.h"
#include "service/handlers/aggregation_methods.h"
#include "service/handlers/task_methods.h"
#include "service/handlers/unary_call.h"

namespace sparseagg::service {

// Owned by Server, which outlives all calls. Immutable, and so thread-safe.
struct Api {
  Api(ServerContext* server, Registry* registry, StreamRegistry* streams, TaskRegistry* tasks_registry)
      : aggregation(server, registry, streams), tasks(server, tasks_registry) {
    for (MethodEntry& entry : aggregation.Entries()) handlers[static_cast<size_t>(entry.method)] = entry.handler;
    for (MethodEntry& entry : tasks.Entries()) handlers[static_cast<size_t>(entry.method)] = entry.handler;
  }

  AggregationMethods aggregation;
  TaskMethods tasks;
  std::array<MethodHandler, kNumMethods> handlers;  // by Method; empty for AggregationMethods::IsLarge and streams
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_API_H_
