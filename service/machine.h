// What all rounds of a server share: nothing but the machine.
#ifndef SPARSEAGG_SERVICE_MACHINE_H_
#define SPARSEAGG_SERVICE_MACHINE_H_

#include "host/engine.h"
#include "service/clock.h"
#include "service/connections.h"
#include "service/limits.h"
#include "service/memory_budget.h"
#include "service/memory_shares.h"
#include "service/metrics.h"
#include "service/slots.h"
#include "service/timer.h"
#include "service/transit.h"
#include "service/worker_pool.h"

namespace sparseagg::service {

struct Machine {
  Machine(Engine* the_engine, const Clock* the_clock, const Limits& the_limits, int num_threads)
      : engine(*the_engine),
        clock(*the_clock),
        limits(FitToMemory(the_limits)),
        budget(Divide(limits).kept, limits.memory_limit_bytes),
        open_rounds(limits.max_open_rounds),
        uploads(limits.max_uploads),
        waits(MostWaits(limits)),
        connections(the_clock),
        timer(the_clock),
        transit(Divide(limits).transit, the_clock, &timer, &pool),
        pool(num_threads) {}
  // No deadline passes any more; then the pool, destroyed first, runs what has been posted, with all else still there.
  ~Machine() { timer.Stop(); }

  Engine& engine;
  const Clock& clock;
  const Limits limits;  // that memory_limit_bytes leaves room for
  MemoryBudget budget;
  Slots open_rounds;
  Slots uploads;
  Slots waits;  // calls that wait for a round to end
  Connections connections;
  Metrics metrics;
  Timer timer;
  Transit transit;
  WorkerPool pool;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_MACHINE_H_
