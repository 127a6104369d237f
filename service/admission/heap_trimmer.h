// A thread that returns freed memory to the system near the process's memory limit.
#ifndef SPARSEAGG_SERVICE_ADMISSION_HEAP_TRIMMER_H_
#define SPARSEAGG_SERVICE_ADMISSION_HEAP_TRIMMER_H_

#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"

namespace sparseagg::service {

// Keeps the process's resident memory below its limit. Freed memory stays resident in two places: the C library keeps
// it between blocks in use, and the column store keeps it for reuse (host/base/column.h). Much more memory can thus be
// resident than in use.
//
// The trimmer's thread checks a few times a second. It trims when resident memory exceeds three quarters of the limit
// and has grown by 1/32 of the limit since the last trim. What was live at that trim may have been freed since, so it
// also trims when the process has been idle for two seconds and an eighth of the limit is resident, and less and less
// often while it stays idle. main.cc owns the trimmer for the life of the process.
class HeapTrimmer {
 public:
  explicit HeapTrimmer(uint64_t limit_bytes);  // 0: no limit, never trims
  ~HeapTrimmer();
  HeapTrimmer(const HeapTrimmer&) = delete;
  HeapTrimmer& operator=(const HeapTrimmer&) = delete;

 private:
  void Run();
  bool IsNearLimit();
  bool IsIdle();
  void Trim();

  const uint64_t limit_;
  // Only the thread uses these.
  uint64_t resident_after_trim_ = 0;                     // bytes
  absl::Duration checked_ = absl::ZeroDuration();        // last look at the load; Clock::Monotonic
  absl::Duration used_at_check_ = absl::ZeroDuration();  // processor time of the process
  uint64_t idle_checks_ = 0;                             // in turn
  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // the last member: starts when all others exist
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_HEAP_TRIMMER_H_
