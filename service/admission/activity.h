// What the clients of a tenant have done since the server started, and how that went over the last ten minutes.
#ifndef SPARSEAGG_SERVICE_ADMISSION_ACTIVITY_H_
#define SPARSEAGG_SERVICE_ADMISSION_ACTIVITY_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"

namespace sparseagg::service {

// The values of the last ten minutes of something that is measured each kInterval. Thread-safe.
class History {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(5);
  static constexpr size_t kLength = 120;

  void Add(uint64_t value) {
    MutexLock lock(&mu_);
    values_[num_added_++ % kLength] = value;
  }
  // Returns: the values, the oldest first; at most kLength.
  std::vector<uint64_t> Values() const {
    MutexLock lock(&mu_);
    std::vector<uint64_t> values;
    values.reserve(kLength);
    for (size_t i = num_added_ < kLength ? 0 : num_added_ - kLength; i < num_added_; ++i) {
      values.push_back(values_[i % kLength]);
    }
    return values;
  }

 private:
  mutable Mutex mu_;
  std::array<uint64_t, kLength> values_ ABSL_GUARDED_BY(mu_) = {};
  size_t num_added_ ABSL_GUARDED_BY(mu_) = 0;
};

// Monotonic totals for dashboards; they include deleted rounds. Of private rounds they have the number alone, since
// observers read them. Thread-safe.
struct Activity {
  std::atomic<uint64_t> rounds = 0;          // created since the start; not those of one call or of an earlier run
  std::atomic<uint64_t> ended_rounds = 0;    // of these
  std::atomic<uint64_t> submissions = 0;     // accepted; repetitions of one count once
  std::atomic<uint64_t> refused = 0;         // submissions
  std::atomic<uint64_t> received_bytes = 0;  // of messages with keys and values
  History submissions_history;               // of the totals
  History received_bytes_history;

  void Sample() {
    submissions_history.Add(submissions);
    received_bytes_history.Add(received_bytes);
  }
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_ACTIVITY_H_
