#include "service/trimmer.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "host/column.h"

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

Trimmer::Trimmer(uint64_t limit_bytes) : limit_(limit_bytes) {
  if (limit_ != 0) thread_ = std::thread([this] { Run(); });
}

Trimmer::~Trimmer() {
  {
    std::lock_guard lock(mu_);
    stopped_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Trimmer::Run() {
  std::unique_lock lock(mu_);
  while (!stopped_) {
    lock.unlock();
    Look();
    lock.lock();
    if (!stopped_) changed_.wait_for(lock, kBetweenLooks);
  }
}

void Trimmer::Look() {
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
