// The division of --memory-limit, and the limits that follow from it.
#ifndef SPARSEAGG_SERVICE_ADMISSION_MEMORY_SHARES_H_
#define SPARSEAGG_SERVICE_ADMISSION_MEMORY_SHARES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"
#include "service/admission/count_limit.h"
#include "service/base/limits.h"

namespace sparseagg::service {

// The least memory limit whose shares add up. Below it the process itself would need most of the limit.
inline constexpr uint64_t kMinMemoryLimitBytes = uint64_t{256} << 20;

// Returns: the value of --memory-limit where none is given: three quarters of the machine's or container's memory, but
// at least kMinMemoryLimitBytes.
uint64_t DefaultMemoryLimit(uint64_t process_memory_bytes);

// Shares of the memory limit in bytes. 0: no limit, as in Limits.
struct MemoryShares {
  uint64_t kept = 0;       // MemoryBudget: uploads, submissions and results in rounds
  uint64_t in_flight = 0;  // InFlightMemory: messages and pages between the wire and a round
  uint64_t process = 0;    // everything else: code, threads, connections, freed memory that is kept for reuse
};

// Divides memory_limit_bytes. From kMinMemoryLimitBytes on the three shares add up to the limit. Below, which only
// tests use, rounds get the whole limit and in-flight memory comes on top.
MemoryShares DivideMemory(const Limits& limits);

// Returns: `limits`, lowered to what memory_limit_bytes has room for: messages and pages (one must fit into in-flight
// memory when streams have their half of it), connections, and tensors of a round's spec.
Limits FitToMemory(Limits limits);

// Returns: `wanted` connections of the HTTP gateway (0: no limit), lowered to what memory_limit_bytes has room for.
uint64_t FitHttpConnections(const Limits& limits, uint64_t wanted);

// Returns: the most of `all` that one host may have: half, so that no host has all; or `wanted`, if that is less and
// not 0. `all` 0: no limit but `wanted`.
uint64_t HostShare(uint64_t all, uint64_t wanted = 0);

// HTTP/2 flow-control window of a stream that the server does not read.
inline constexpr int kStreamWindowBytes = 64 << 10;
// The most memory of a stream that the server does not read: the window, gRPC's call and the server's reactor.
inline constexpr uint64_t kStreamBytes = kStreamWindowBytes + (uint64_t{32} << 10);

// Returns: the most bytes that gRPC may buffer of one message before it refuses the message as too large. More than
// max_message_bytes, so that slightly larger messages reach our own check, whose error names the flag.
uint64_t MaxBufferedMessageBytes(const Limits& limits);

// Returns: the number of WaitRound calls that may wait at once; 0: no limit.
uint64_t MaxWaitingCalls(const Limits& limits);

// Returns: the number of HTTP/2 streams that may be open in all connections, served or not; 0: no limit.
uint64_t MaxOpenStreams(const Limits& limits);

// Returns: the most bytes that a round's spec may have on the wire; 0: no limit. Without this bound, a parsed spec
// takes a hundred times the memory of its message before its tensors are counted.
uint64_t MaxSpecBytes(const Limits& limits);
// Returns: the most protobuf fields that a round's spec may have on the wire; 0: no limit.
uint64_t MaxSpecFields(const Limits& limits);

// Returns: the most client ids that a message may list; 0: no limit. Without this bound, a list of empty ids takes
// thirty times the memory of its message once it is parsed.
uint64_t MaxListedIds(const Limits& limits);

// Returns: the memory of a page of `page_bytes` on its way out: the page and its serialised copy. Saturates.
uint64_t PageInFlightBytes(uint64_t page_bytes);

// JSON with all default values takes up to about this many times the bytes of the message, its copies included.
inline constexpr uint64_t kJsonFactor = 12;

// Returns: the host in a caller's name (InFlightMemory::Acquire). "": it has none, and no host's limit applies, as of
// callers on Unix sockets, which are all of this machine.
absl::string_view HostOfCaller(absl::string_view peer);

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

 private:
  CountLimit all_;
  const uint64_t host_limit_;
  Mutex mu_;
  std::map<std::string, uint64_t, std::less<>> by_host_ ABSL_GUARDED_BY(mu_);  // units of each that has some
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_MEMORY_SHARES_H_
