// A limit on the number of waiting calls, of which no host gets all.
#ifndef SPARSEAGG_SERVICE_ADMISSION_HOST_LIMIT_H_
#define SPARSEAGG_SERVICE_ADMISSION_HOST_LIMIT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"
#include "service/admission/count_limit.h"

namespace sparseagg::service {

// A CountLimit of which one host gets at most half (HostShare).
//
//   const std::shared_ptr<const void> permit = waits.TryAcquire(caller.PeerName());  // lives as long as the wait
//   if (permit == nullptr) return RetryLater(absl::StrCat(waits.DescribeFull(), " wait already"));
//
// Owned by ServerContext; outlives the permits. Thread-safe.
class HostLimit {
 public:
  explicit HostLimit(uint64_t limit);  // 0: no limit

  // `peer`: as of InFlightMemory::Acquire. Unix sockets, which have no names, share no host's part.
  // Returns: one unit, until it is released; null if the limit or the host's part of it is reached.
  std::shared_ptr<const void> TryAcquire(absl::string_view peer) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns: for the text of an error, which limit is reached: "1280 calls", "640 calls of one host".
  std::string DescribeFull() const;

  CountLimit& all() { return all_; }
  uint64_t limit() const { return all_.limit(); }
  uint64_t host_limit() const { return host_limit_; }

 private:
  CountLimit all_;
  const uint64_t host_limit_;
  Mutex mu_;
  std::map<std::string, uint64_t, std::less<>> by_host_ ABSL_GUARDED_BY(mu_);  // units of each that has some
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_HOST_LIMIT_H_
