#include "service/admission/process_memory.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/column.h"
#include "service/base/clock.h"

namespace sparseagg::service {

uint64_t ProcessMemory(const std::string& root) {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  const auto consider = [&](const std::string& path) {
    uint64_t limit = 0;  // unchanged if the file says "max"
    if (std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
  };
  // Each line is number:controllers:path; cgroup v2 leaves the controllers empty. In a container the path is often "/",
  // or the path on the host, and the container's own group is mounted at the top. So the top counts in any case.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const bool is_v2 = fields[1].empty();
    if (!is_v2 && fields[1] != "memory") continue;
    const std::string top = root + (is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    const std::string file = is_v2 ? "/memory.max" : "/memory.limit_in_bytes";
    for (std::string path = fields[2]; absl::StartsWith(path, "/"); path.resize(path.rfind('/'))) {
      consider(absl::StrCat(top, path, file));
    }
    consider(absl::StrCat(top, file));
  }
  return bytes;
}

uint64_t ResidentBytes() {
  uint64_t total_pages = 0;
  uint64_t resident_pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> total_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

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
