// Gives freed memory back to the system when the process comes near its limit.
#ifndef SPARSEAGG_SERVICE_ADMISSION_HEAP_TRIMMER_H_
#define SPARSEAGG_SERVICE_ADMISSION_HEAP_TRIMMER_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace sparseagg::service {

// Bytes of this process that are in memory now; 0 if the system does not say.
uint64_t ResidentBytes();

// What is freed stays with the C library, in pieces between what is in use, and with the store of columns, so that much
// more may be resident than is in use. A thread looks a few times a second. Below three quarters of the limit it does
// nothing, and above only if more has become resident since it gave back what it could.
class HeapTrimmer {
 public:
  explicit HeapTrimmer(uint64_t limit_bytes);  // 0: no limit, nothing is ever given back
  ~HeapTrimmer();
  HeapTrimmer(const HeapTrimmer&) = delete;
  HeapTrimmer& operator=(const HeapTrimmer&) = delete;

 private:
  void Run();
  void Look();

  const uint64_t limit_;
  uint64_t after_trim_ = 0;  // resident, after the last time
  std::mutex mu_;
  std::condition_variable changed_;
  bool stopped_ = false;  // guarded by mu_
  std::thread thread_;    // last: starts when all else is there
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_HEAP_TRIMMER_H_
