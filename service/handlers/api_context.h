// What the methods and the rounds of one process share.
#ifndef SPARSEAGG_SERVICE_HANDLERS_API_CONTEXT_H_
#define SPARSEAGG_SERVICE_HANDLERS_API_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "host/engine.h"
#include "service/admission/activity.h"
#include "service/admission/count_limit.h"
#include "service/admission/in_flight_memory.h"
#include "service/admission/memory_budget.h"
#include "service/admission/memory_shares.h"
#include "service/admission/tenants.h"
#include "service/base/clock.h"
#include "service/base/limits.h"
#include "service/base/log.h"
#include "service/base/metrics.h"
#include "service/base/worker_pool.h"
#include "service/rounds/round_services.h"

namespace sparseagg::service {

// Of a server, as a ServerContext, or of a process that has rounds of its own. Outlives all calls and rounds. All
// members are thread-safe.
struct ApiContext {
  ApiContext(Engine* the_engine, const Clock* the_clock, const Limits& the_limits, int num_threads,
             Store* the_store = nullptr, std::unique_ptr<const Certifier> the_certifier = nullptr)
      : engine(*the_engine),
        clock(*the_clock),
        store(the_store),
        limits(FitToMemory(the_limits)),
        budget(DivideMemory(limits).kept, limits.memory_limit_bytes),
        open_rounds(limits.max_open_rounds),
        uploads(limits.max_uploads),
        tenants(limits, &budget, &open_rounds, &uploads, the_clock),
        instance(store == nullptr ? absl::StrCat("memory-", absl::ToUnixNanos(start_time)) : store->Identity()),
        waits(MaxWaitingCalls(limits)),
        lease_waits(limits.max_waiting_leases),
        certifier(std::move(the_certifier)),
        timer(the_clock),
        in_flight(DivideMemory(limits).in_flight, the_clock, &timer, &pool),
        pool(num_threads),
        inspections(1),
        backups(1) {}
  ~ApiContext() { Stop(); }

  // Stops the timer, so that no task is posted any more, and then the pools, which run the tasks that have been posted.
  // What derives from this calls it first, while its own members exist.
  void Stop() {
    timer.Stop();
    backups.Stop();
    inspections.Stop();
    pool.Stop();
  }

  // Returns: the parts that rounds use.
  RoundServices ForRounds() {
    return {engine, clock, limits, tenants, timer, pool, metrics, store, &noise_key, certifier.get()};
  }

  Engine& engine;
  const Clock& clock;
  Store* const store;      // what survives a restart; null: nothing does
  const Limits limits;     // lowered to what memory_limit_bytes has room for
  MemoryBudget budget;     // what rounds keep
  CountLimit open_rounds;  // rounds that have not ended
  CountLimit uploads;      // uploads of all rounds
  Tenants tenants;         // each tenant's part of these three
  const absl::Time start_time = clock.WallTime();
  const std::string instance;  // of v1::ServerInfo
  History resident_bytes;      // of the process
  HostLimit waits;             // calls that wait for a round to end
  HostLimit lease_waits;       // calls that wait for a task
  Metrics metrics;
  Warnings warnings;
  std::string noise_key;                             // set before the first call; empty: private rounds are refused
  std::string backup_dir;                            // set before the first call; empty: backups are refused
  const std::unique_ptr<const Certifier> certifier;  // null: no round has a certificate
  Timer timer;
  InFlightMemory in_flight;  // messages and pages between the wire and the rounds
  WorkerPool pool;
  WorkerPool inspections;  // InspectRound and pages of ExportSubmissions, one at a time: they may take long
  WorkerPool backups;      // CreateBackup, one at a time: each may take minutes
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_API_CONTEXT_H_
