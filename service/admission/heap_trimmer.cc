#include "service/admission/heap_trimmer.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "host/base/column.h"

namespace sparseagg::service {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(100);

}  // namespace

uint64_t ResidentBytes() {
  uint64_t pages_of_all = 0;
  uint64_t pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages_of_all >> pages)) return 0;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

HeapTrimmer::HeapTrimmer(uint64_t limit_bytes) : limit_(limit_bytes) {
  if (limit_ != 0) thread_ = std::thread([this] { Run(); });
}

HeapTrimmer::~HeapTrimmer() {
  {
    std::lock_guard lock(mu_);
    stopped_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void HeapTrimmer::Run() {
  std::unique_lock lock(mu_);
  while (!stopped_) {
    lock.unlock();
    Look();
    lock.lock();
    if (!stopped_) changed_.wait_for(lock, kBetweenLooks);
  }
}

void HeapTrimmer::Look() {
  const uint64_t resident = ResidentBytes();
  if (resident < limit_ / 4 * 3 || resident < after_trim_ + limit_ / 32) {
    after_trim_ = std::min(after_trim_, resident);
    return;
  }
  ReleaseFreedColumns();
  malloc_trim(0);
  after_trim_ = ResidentBytes();
}

}  // namespace sparseagg::service
