#include "service/admission/heap_trimmer.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>

#include "host/base/column.h"
#include "service/admission/process_memory.h"
#include "service/base/clock.h"

namespace sparseagg::service {
namespace {

constexpr absl::Duration kCheckInterval = absl::Milliseconds(100);

// The process is idle if it takes less than this share of a core between two looks, this far apart.
constexpr double kIdleLoad = 0.05;
constexpr absl::Duration kIdleInterval = absl::Seconds(2);

absl::Duration ProcessorTime() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return absl::DurationFromTimeval(used.ru_utime) + absl::DurationFromTimeval(used.ru_stime);
}

}  // namespace

HeapTrimmer::HeapTrimmer(uint64_t limit_bytes) : limit_(limit_bytes) {
  if (limit_ != 0) thread_ = std::thread([this] { Run(); });
}

HeapTrimmer::~HeapTrimmer() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

void HeapTrimmer::Run() {
  MutexLock lock(&mu_);
  while (!stopped_) {
    mu_.Unlock();
    if (IsNearLimit() || IsIdle()) Trim();
    mu_.Lock();
    if (!stopped_) changed_.WaitWithTimeout(&mu_, kCheckInterval);
  }
}

bool HeapTrimmer::IsNearLimit() {
  const uint64_t resident = ResidentBytes();
  resident_after_trim_ = std::min(resident_after_trim_, resident);
  return resident >= limit_ / 4 * 3 && resident >= resident_after_trim_ + limit_ / 32;
}

bool HeapTrimmer::IsIdle() {
  const absl::Duration now = SystemClock().Monotonic();
  if (now - checked_ < kIdleInterval) return false;
  const absl::Duration used = ProcessorTime();
  const bool has_worked = used - used_at_check_ > (now - checked_) * kIdleLoad;
  used_at_check_ = used;
  checked_ = now;
  idle_checks_ = has_worked ? 0 : idle_checks_ + 1;
  // Once, twice, four times, … after it began to be idle.
  const bool is_due = idle_checks_ > 0 && (idle_checks_ & (idle_checks_ - 1)) == 0;
  return is_due && ResidentBytes() >= limit_ / 8;
}

void HeapTrimmer::Trim() {
  ReleaseFreedColumns();
  malloc_trim(0);
  resident_after_trim_ = ResidentBytes();
}

}  // namespace sparseagg::service
