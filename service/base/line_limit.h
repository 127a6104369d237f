// A limit on the lines of the log that clients can cause.
#ifndef SPARSEAGG_SERVICE_BASE_LINE_LIMIT_H_
#define SPARSEAGG_SERVICE_BASE_LINE_LIMIT_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"

namespace sparseagg::service {

// At most kLinesPerSecond lines a second; the next line tells how many were left out. Thread-safe.
class LineLimit {
 public:
  static constexpr int kLinesPerSecond = 10;

  explicit LineLimit(const Clock* clock) : clock_(*clock) {}  // borrowed

  // Returns: the number of lines left out since the last one; nullopt: leave this one out, too.
  std::optional<uint64_t> TryTake() {
    MutexLock lock(&mu_);
    const absl::Duration now = clock_.Monotonic();
    if (now - second_ >= absl::Seconds(1)) {
      second_ = now;
      num_lines_ = 0;
    }
    if (num_lines_ == kLinesPerSecond) {
      ++num_omitted_;
      return std::nullopt;
    }
    ++num_lines_;
    return std::exchange(num_omitted_, 0);
  }

 private:
  const Clock& clock_;
  Mutex mu_;
  absl::Duration second_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();  // the start of the current one
  int num_lines_ ABSL_GUARDED_BY(mu_) = 0;                                  // in the current second
  uint64_t num_omitted_ ABSL_GUARDED_BY(mu_) = 0;                           // since the last line
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_LINE_LIMIT_H_
