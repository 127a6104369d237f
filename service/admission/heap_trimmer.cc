#include "service/admission/heap_trimmer.h"

#include <malloc.h>

#include <algorithm>

#include "absl/time/time.h"
#include "host/base/column.h"
#include "service/admission/process_memory.h"

namespace sparseagg::service {
namespace {

constexpr absl::Duration kCheckInterval = absl::Milliseconds(100);

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
    TrimIfNeeded();
    mu_.Lock();
    if (!stopped_) changed_.WaitWithTimeout(&mu_, kCheckInterval);
  }
}

void HeapTrimmer::TrimIfNeeded() {
  const uint64_t resident = ResidentBytes();
  if (resident < limit_ / 4 * 3 || resident < resident_after_trim_ + limit_ / 32) {
    resident_after_trim_ = std::min(resident_after_trim_, resident);
    return;
  }
  ReleaseFreedColumns();
  malloc_trim(0);
  resident_after_trim_ = ResidentBytes();
}

}  // namespace sparseagg::service
