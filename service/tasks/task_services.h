// The parts of the server that the task store uses.
#ifndef SPARSEAGG_SERVICE_TASKS_TASK_SERVICES_H_
#define SPARSEAGG_SERVICE_TASKS_TASK_SERVICES_H_

#include "service/admission/memory_budget.h"
#include "service/base/clock.h"
#include "service/base/limits.h"
#include "service/base/metrics.h"
#include "service/base/timer.h"
#include "service/base/worker_pool.h"
#include "service/rounds/registry.h"
#include "service/store/store.h"

namespace sparseagg::service {

// References to what the server owns, which outlives the task store. All parts are thread-safe.
struct TaskServices {
  const Clock& clock;      // leases, deadlines and timeouts
  const Limits& limits;    // max_open_tasks, max_task_bytes, max_lease, max_result_ttl
  MemoryBudget& budget;    // the memory that tasks keep, beside that of rounds
  Timer& timer;            // the next lease, deadline or timeout that ends
  WorkerPool& pool;        // what the timer begins
  Metrics& metrics;        // counts what happens to tasks
  Registry& rounds;        // the rounds that tasks belong to
  Store* store = nullptr;  // what survives a restart; null: nothing does
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TASKS_TASK_SERVICES_H_
