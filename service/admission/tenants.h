// What each tenant may take of the server.
#ifndef SPARSEAGG_SERVICE_ADMISSION_TENANTS_H_
#define SPARSEAGG_SERVICE_ADMISSION_TENANTS_H_

#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"
#include "service/admission/activity.h"
#include "service/admission/count_limit.h"
#include "service/admission/memory_budget.h"
#include "service/base/clock.h"
#include "service/base/limits.h"
#include "service/base/log.h"
#include "service/base/metrics.h"

namespace sparseagg::service {

// One tenant's part of the server's limits. All members are thread-safe.
struct Tenant {
  Tenant(const Limits& limits, MemoryBudget* all_budget, CountLimit* all_open_rounds, CountLimit* all_uploads,
         const Clock* clock)
      : budget(limits.max_memory_per_tenant, all_budget),
        open_rounds(limits.max_open_rounds_per_tenant, all_open_rounds),
        uploads(limits.max_uploads_per_tenant, all_uploads),
        transfers(limits.max_transfers_per_tenant),
        submissions(limits.max_submissions_per_second_per_tenant, clock),
        refusal_lines(clock) {}

  MemoryBudget budget;      // what its rounds keep
  CountLimit open_rounds;   // its rounds that have not ended
  CountLimit uploads;       // uploads to its rounds
  CountLimit transfers;     // its calls that carry chunks, pages or long answers
  RateLimit submissions;    // uploads begun
  LineLimit refusal_lines;  // of the log, about its refused submissions
  Activity activity;
};

// Makes the RESOURCE_EXHAUSTED status of a count limit that is reached, the tenant's or the server's, and counts the
// former. `name`: of the limit, "open_rounds"; `things`: what it counts, "rounds".
inline absl::Status OpenLimitError(const CountLimit& limit, absl::string_view name, absl::string_view things,
                                   Metrics& metrics) {
  if (!limit.IsFull()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server's max_", name, " ", limit.whole().limit(), " ", things, " are open already"));
  }
  metrics.CountTenantRefusal(name);
  return absl::ResourceExhaustedError(absl::StrCat("the server's max_", name, "_per_tenant ", limit.limit(), " ",
                                                   things, " of the tenant are open already"));
}

// The tenants that have called since the server started. None is forgotten: a tenant takes 2.5 kB, and only a
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
    const auto found = tenants_.find(name);
    if (found != tenants_.end()) return found->second;
    return tenants_.try_emplace(std::string(name), limits_, &budget_, &open_rounds_, &uploads_, &clock_).first->second;
  }

  // Adds the present totals to the history of each tenant. Call it each History::kInterval.
  void SampleActivity() {
    MutexLock lock(&mu_);
    for (auto& [name, tenant] : tenants_) tenant.activity.Sample();
  }

 private:
  const Limits& limits_;
  MemoryBudget& budget_;
  CountLimit& open_rounds_;
  CountLimit& uploads_;
  const Clock& clock_;
  Mutex mu_;
  std::map<std::string, Tenant, std::less<>> tenants_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_TENANTS_H_
