#include "service/auth/audit_log.h"

#include <optional>

#include "service/base/log.h"

namespace sparseagg::service {

bool AuditLog::Denied(absl::string_view method, absl::string_view caller, absl::string_view peer,
                      const absl::Status& reason) {
  const std::optional<uint64_t> omitted = lines_.TryTake();
  if (!omitted.has_value()) return false;
  Log(LogLevel::kWarning, "denied",
      {{"method", method},
       {"caller", caller},
       {"peer", peer},
       {"code", absl::StatusCodeToString(reason.code())},
       {"reason", reason.message()},
       {"omitted", *omitted}});
  return true;
}

}  // namespace sparseagg::service
