// What each tenant may take of the server.
#ifndef SPARSEAGG_SERVICE_ADMISSION_TENANTS_H_
#define SPARSEAGG_SERVICE_ADMISSION_TENANTS_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"
#include "service/admission/count_limit.h"
#include "service/admission/memory_budget.h"
#include "service/admission/rate_limit.h"
#include "service/base/clock.h"
#include "service/base/limits.h"

namespace sparseagg::service {

// One tenant's part of the server's limits. All members are thread-safe.
struct Tenant {
  Tenant(const Limits& limits, MemoryBudget* all_budget, CountLimit* all_open_rounds, CountLimit* all_uploads,
         const Clock* clock)
      : budget(limits.max_memory_per_tenant, all_budget),
        open_rounds(limits.max_open_rounds_per_tenant, all_open_rounds),
        uploads(limits.max_uploads_per_tenant, all_uploads),
        transfers(limits.max_transfers_per_tenant),
        submissions(limits.max_submissions_per_second_per_tenant, clock) {}

  MemoryBudget budget;     // what its rounds keep
  CountLimit open_rounds;  // its rounds that have not ended
  CountLimit uploads;      // uploads to its rounds
  CountLimit transfers;    // its calls that carry chunks, pages or long answers
  RateLimit submissions;   // uploads begun
};

// The tenants that have called since the server started. None is forgotten: a tenant takes 300 bytes, and only a
// credential or an admin can name one.
//
// Owned by ServerContext. Thread-safe.
class Tenants {
 public:
  // Borrows everything. `budget`, `open_rounds` and `uploads` are those of all tenants together.
  Tenants(const Limits& limits, MemoryBudget* budget, CountLimit* open_rounds, CountLimit* uploads, const Clock* clock)
      : limits_(limits), budget_(*budget), open_rounds_(*open_rounds), uploads_(*uploads), clock_(*clock) {}

  // Returns: the tenant, which lives as long as this object.
  Tenant& Of(absl::string_view name) {
    MutexLock lock(&mu_);
    std::unique_ptr<Tenant>& tenant = tenants_[name];
    if (tenant == nullptr) {
      tenant = std::make_unique<Tenant>(limits_, &budget_, &open_rounds_, &uploads_, &clock_);
    }
    return *tenant;
  }

 private:
  const Limits& limits_;
  MemoryBudget& budget_;
  CountLimit& open_rounds_;
  CountLimit& uploads_;
  const Clock& clock_;
  Mutex mu_;
  absl::flat_hash_map<std::string, std::unique_ptr<Tenant>> tenants_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_TENANTS_H_
