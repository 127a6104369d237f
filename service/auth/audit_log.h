// The log of refused callers.
#ifndef SPARSEAGG_SERVICE_AUTH_AUDIT_LOG_H_
#define SPARSEAGG_SERVICE_AUTH_AUDIT_LOG_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"

namespace sparseagg::service {

// Logs refused calls, at most kLinesPerSecond lines a second: a caller without a credential must not flood the log. The
// next line tells how many were left out.
//
// Owned by ServerContext. Thread-safe.
class AuditLog {
 public:
  static constexpr int kLinesPerSecond = 10;

  explicit AuditLog(const Clock* clock) : clock_(*clock) {}  // borrowed

  // Logs the refusal of a call. `caller` is empty if the caller is unknown.
  // Returns: whether there is a line.
  bool Denied(absl::string_view method, absl::string_view caller, absl::string_view peer, const absl::Status& reason);

 private:
  const Clock& clock_;
  Mutex mu_;
  absl::Duration second_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();  // the start of the current one
  int num_lines_ ABSL_GUARDED_BY(mu_) = 0;                                  // in the current second
  uint64_t num_omitted_ ABSL_GUARDED_BY(mu_) = 0;                           // since the last line
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_AUTH_AUDIT_LOG_H_
