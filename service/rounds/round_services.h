// The parts of the server that rounds use.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_SERVICES_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_SERVICES_H_

#include <string>

#include "host/engine.h"
#include "service/admission/tenants.h"
#include "service/base/clock.h"
#include "service/base/limits.h"
#include "service/base/metrics.h"
#include "service/base/worker_pool.h"
#include "service/rounds/certifier.h"
#include "service/store/store.h"

namespace sparseagg::service {

// References to what all rounds of a server share. ServerContext owns the parts and makes this struct; they outlive
// every round. All parts are thread-safe.
struct RoundServices {
  Engine& engine;                          // computes the sums
  const Clock& clock;                      // deadlines, timeouts and timelines
  const Limits& limits;                    // upload_timeout
  Tenants& tenants;                        // limits on open rounds, uploads and the memory that rounds keep
  Timer& timer;                            // deadlines, upload timeouts, expiry
  WorkerPool& pool;                        // merges, and tells owners of discarded uploads
  Metrics& metrics;                        // counts submissions and measures stages
  Store* store = nullptr;                  // what survives a restart; null: nothing does
  const std::string* noise_key = nullptr;  // of private rounds; null: there are none
  const Certifier* certifier = nullptr;    // of rounds with a certificate; null: there are none
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_SERVICES_H_
