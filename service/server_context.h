// What all rounds of a server share: nothing but the machine.
#ifndef SPARSEAGG_SERVICE_SERVER_CONTEXT_H_
#define SPARSEAGG_SERVICE_SERVER_CONTEXT_H_

#include "host/engine.h"
#include "service/admission/count_limit.h"
#include "service/admission/in_flight_memory.h"
#include "service/admission/memory_budget.h"
#include "service/admission/memory_shares.h"
#include "service/base/clock.h"
#include "service/base/limits.h"
#include "service/base/metrics.h"
#include "service/base/timer.h"
#include "service/base/worker_pool.h"
#include "service/transport/connection_table.h"

namespace sparseagg::service {

struct ServerContext {
  ServerContext(Engine* the_engine, const Clock* the_clock, const Limits& the_limits, int num_threads)
      : engine(*the_engine),
        clock(*the_clock),
        limits(FitToMemory(the_limits)),
        budget(DivideMemory(limits).kept, limits.memory_limit_bytes),
        open_rounds(limits.max_open_rounds),
        uploads(limits.max_uploads),
        waits(MaxWaitingCalls(limits)),
        connections(the_clock),
        timer(the_clock),
        in_flight(DivideMemory(limits).in_flight, the_clock, &timer, &pool),
        pool(num_threads) {}
  // No deadline passes any more; then the pool, destroyed first, runs what has been posted, with all else still there.
  ~ServerContext() { timer.Stop(); }

  Engine& engine;
  const Clock& clock;
  const Limits limits;  // that memory_limit_bytes leaves room for
  MemoryBudget budget;
  CountLimit open_rounds;
  CountLimit uploads;
  CountLimit waits;  // calls that wait for a round to end
  ConnectionTable connections;
  Metrics metrics;
  Timer timer;
  InFlightMemory in_flight;
  WorkerPool pool;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_SERVER_CONTEXT_H_
