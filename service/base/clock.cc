#include "service/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace sparseagg::service {
namespace {

class RealClock final : public Clock {
 public:
  absl::Duration Monotonic() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  absl::Time WallTime() const override { return absl::Now(); }
};

}  // namespace

const Clock& SystemClock() {
  static const RealClock clock;
  return clock;
}

}  // namespace sparseagg::service
