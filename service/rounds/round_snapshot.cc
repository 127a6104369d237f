#include "service/rounds/round_snapshot.h"

#include <algorithm>
#include <utility>

#include "host/base/status_macros.h"
#include "service/base/refusals.h"

namespace sparseagg::service {

void RecentRefusals::Add(absl::string_view client_id, const absl::Status& status, absl::Time time) {
  const absl::Status kept = ToStatus([&] {
    if (memory_.bytes() == 0) {
      absl::Status reserved = memory_.Grow(kListBytes, "a list of refusals", "");
      if (!reserved.ok()) return reserved;
      refusals_.reserve(kMaxRefusals);
    }
    Refusal refusal{std::string(client_id), status.code(), std::string(Shorten(status.message(), kMaxReasonBytes)),
                    time};
    if (refusals_.size() < kMaxRefusals) {
      refusals_.push_back(std::move(refusal));
    } else {
      std::rotate(refusals_.begin(), refusals_.begin() + 1, refusals_.end());
      refusals_.back() = std::move(refusal);
    }
    return absl::OkStatus();
  });
  kept.IgnoreError();
}

}  // namespace sparseagg::service
