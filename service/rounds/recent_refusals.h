// The latest submissions that a round has refused, for its operator.
#ifndef SPARSEAGG_SERVICE_ROUNDS_RECENT_REFUSALS_H_
#define SPARSEAGG_SERVICE_ROUNDS_RECENT_REFUSALS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/admission/memory_budget.h"

namespace sparseagg::service {

struct Refusal {
  std::string client_id;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;  // human-readable, at most RecentRefusals::kMaxReasonBytes
  absl::Time time;
};

// A list of the latest kMaxRefusals refusals, the oldest first. Not stored: a restart forgets it. Not thread-safe.
class RecentRefusals {
 public:
  static constexpr size_t kMaxRefusals = 20;
  static constexpr size_t kMaxReasonBytes = 256;
  static constexpr size_t kMaxRefusalBytes = 256 + kMaxReasonBytes + 128;  // one entry, with its client id
  static constexpr size_t kListBytes = kMaxRefusals * kMaxRefusalBytes;    // reserved at the first refusal

  // `budget`: of the round's tenant; must outlive this object.
  explicit RecentRefusals(MemoryBudget* budget) : memory_(budget, /*keeps_submissions=*/false) {}

  // Appends a refusal and drops the oldest if the list is full. Without memory for the list nothing is kept: a refusal
  // must not fail because it cannot be recorded.
  void Add(absl::string_view client_id, const absl::Status& status, absl::Time time);

  const std::vector<Refusal>& list() const { return refusals_; }

 private:
  Reservation memory_;
  std::vector<Refusal> refusals_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_RECENT_REFUSALS_H_
