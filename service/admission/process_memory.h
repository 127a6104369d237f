// How much memory this process may use and uses, and the return of freed memory to the system.
#ifndef SPARSEAGG_SERVICE_ADMISSION_PROCESS_MEMORY_H_
#define SPARSEAGG_SERVICE_ADMISSION_PROCESS_MEMORY_H_

#include <cstdint>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"

namespace sparseagg::service {

// Returns: the bytes of memory of the machine or container: the least of the machine's memory and the limits of the
// process's control group and its ancestors. `root`: prefix of /proc and /sys, for tests.
uint64_t ProcessMemory(const std::string& root = "");

// Returns: the bytes of this process that are in RAM now; 0 if the system does not say.
uint64_t ResidentBytes();

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

#endif  // SPARSEAGG_SERVICE_ADMISSION_PROCESS_MEMORY_H_
