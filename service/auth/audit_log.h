// The log of refused callers.
#ifndef SPARSEAGG_SERVICE_AUTH_AUDIT_LOG_H_
#define SPARSEAGG_SERVICE_AUTH_AUDIT_LOG_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/base/clock.h"
#include "service/base/line_limit.h"

namespace sparseagg::service {

// Logs refused calls, as many as LineLimit allows: a caller without a credential must not flood the log.
//
// Owned by ServerContext. Thread-safe.
class AuditLog {
 public:
  explicit AuditLog(const Clock* clock) : lines_(clock) {}  // borrowed

  // Logs the refusal of a call. `caller` is empty if the caller is unknown.
  // Returns: whether there is a line.
  bool Denied(absl::string_view method, absl::string_view caller, absl::string_view peer, const absl::Status& reason);

 private:
  LineLimit lines_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_AUTH_AUDIT_LOG_H_
