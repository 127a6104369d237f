#include "service/auth/audit_log.h"

#include <utility>

#include "service/base/log.h"

namespace sparseagg::service {

bool AuditLog::Denied(absl::string_view method, absl::string_view caller, absl::string_view peer,
                      const absl::Status& reason) {
  uint64_t omitted;
  {
    MutexLock lock(&mu_);
    const absl::Duration now = clock_.Monotonic();
    if (now - second_ >= absl::Seconds(1)) {
      second_ = now;
      num_lines_ = 0;
    }
    if (num_lines_ == kLinesPerSecond) {
      ++num_omitted_;
      return false;
    }
    ++num_lines_;
    omitted = std::exchange(num_omitted_, 0);
  }
  Log(LogLevel::kWarning, "denied",
      {{"method", method},
       {"caller", caller},
       {"peer", peer},
       {"code", absl::StatusCodeToString(reason.code())},
       {"reason", reason.message()},
       {"omitted", omitted}});
  return true;
}

}  // namespace sparseagg::service
