#include "service/admission/memory_shares.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"

namespace sparseagg::service {
namespace {

// A message up to this much above max_message_bytes is refused by us, with the name of the flag; larger ones by gRPC.
constexpr uint64_t kMaxMessageMarginBytes = uint64_t{1} << 20;

// The message size to plan for where max_message_bytes is unlimited.
constexpr uint64_t kTypicalMessageBytes = uint64_t{64} << 20;

// Code, threads and libraries.
constexpr uint64_t kProcessBytes = uint64_t{64} << 20;

// gRPC's and our memory of one WaitRound call (measured with 15 000 calls).
constexpr uint64_t kWaitingCallBytes = uint64_t{16} << 10;

// A connection of the HTTP gateway with a large header, and a body and a response that need no reservation. Not
// counted: what connection_bytes counts of the socket and TLS.
constexpr uint64_t kHttpConnectionBytes = uint64_t{64} << 10;

// A tensor in the spec of a round on the wire: its name and a dozen numbers.
constexpr uint64_t kSpecTensorBytes = 512;
constexpr uint64_t kMinSpecBytes = uint64_t{64} << 10;
// A tensor has 25 fields, those of its aggregation included, and each byte of the sizes in its shape counts as one.
constexpr uint64_t kSpecTensorFields = 48;
constexpr uint64_t kMinSpecFields = 4096;
// A tensor of a parsed spec: kSpecTensorFields of about sixty bytes each, and its decoded form.
constexpr uint64_t kParsedTensorBytes = 4096;
// A client id of a parsed list: string, pointer and what the allocator adds.
constexpr uint64_t kParsedIdBytes = 64;

}  // namespace

uint64_t DefaultMemoryLimit(uint64_t process_memory_bytes) {
  return std::max(process_memory_bytes / 4 * 3, kMinMemoryLimitBytes);
}

uint64_t MaxBufferedMessageBytes(const Limits& limits) {
  const uint64_t bytes = limits.max_message_bytes == 0 ? kTypicalMessageBytes : limits.max_message_bytes;
  return SaturatingAdd(bytes, std::min(kMaxMessageMarginBytes, bytes / 4 + 4096));
}

uint64_t MaxWaitingCalls(const Limits& limits) { return DivideMemory(limits).process / 4 / kWaitingCallBytes; }

uint64_t MaxOpenStreams(const Limits& limits) { return DivideMemory(limits).process / 2 / kWaitingCallBytes; }

uint64_t MaxSpecBytes(const Limits& limits) {
  if (limits.max_tensors == 0) return 0;
  return std::max(kMinSpecBytes, SaturatingMultiply(kSpecTensorBytes, limits.max_tensors));
}

uint64_t MaxSpecFields(const Limits& limits) {
  if (limits.max_tensors == 0) return 0;
  return std::max(kMinSpecFields, SaturatingMultiply(kSpecTensorFields, limits.max_tensors));
}

uint64_t MaxListedIds(const Limits& limits) { return DivideMemory(limits).process / 4 / kParsedIdBytes; }

uint64_t PageInFlightBytes(uint64_t page_bytes) { return SaturatingMultiply(2, page_bytes); }

MemoryShares DivideMemory(const Limits& limits) {
  const uint64_t limit = limits.memory_limit_bytes;
  if (limit == 0) return {};
  // Streams may take half of it. The other half has room for two messages at the same time.
  const uint64_t min_in_flight = SaturatingMultiply(4, MaxBufferedMessageBytes(limits));
  if (limit < kMinMemoryLimitBytes) return {limit, min_in_flight, 0};
  MemoryShares shares;
  shares.process = kProcessBytes + limit / 16;
  shares.in_flight = std::min(std::max(limit / 8, min_in_flight), limit / 2);
  shares.kept = limit - shares.process - shares.in_flight;
  return shares;
}

Limits FitToMemory(Limits limits) {
  if (limits.memory_limit_bytes < kMinMemoryLimitBytes) return limits;
  const auto lower = [](uint64_t most, uint64_t& limit) { limit = limit == 0 ? most : std::min(limit, most); };
  // In-flight memory grows with max_message_bytes, up to half of the memory limit. Streams leave half of that.
  const uint64_t most_message = limits.memory_limit_bytes / 4 - kMaxMessageMarginBytes;
  lower(limits.max_message_bytes == 0 ? std::min(kTypicalMessageBytes, most_message) : most_message,
        limits.max_message_bytes);
  const MemoryShares shares = DivideMemory(limits);
  lower(shares.in_flight / 2 / kJsonFactor, limits.max_page_bytes);  // also as JSON, whose pages are the largest
  // The process's share is promised more than once: a quarter each to connections, parsed specs and waiting calls
  // (MaxWaitingCalls), three quarters to freed memory that is kept for reuse, and a quarter to pinned memory of each
  // GPU (main.cc). These peaks seldom coincide, and HeapTrimmer returns the freed memory near the limit.
  lower(shares.process / 4 / limits.connection_bytes, limits.max_connections);
  lower(shares.process / 4 / kParsedTensorBytes, limits.max_tensors);
  lower(MaxWaitingCalls(limits), limits.max_waiting_leases);
  return limits;
}

uint64_t FitHttpConnections(const Limits& limits, uint64_t wanted) {
  const uint64_t share = DivideMemory(limits).process;
  const uint64_t most = share == 0 ? 10'000 : share / 8 / (kHttpConnectionBytes + limits.connection_bytes);
  return wanted == 0 ? most : std::min(wanted, most);
}

uint64_t HostShare(uint64_t all, uint64_t wanted) {
  if (all == 0) return wanted;
  const uint64_t half = std::max<uint64_t>(all / 2, 1);
  return wanted == 0 ? half : std::min(wanted, half);
}

absl::string_view HostOfCaller(absl::string_view peer) {
  return absl::StartsWith(peer, "unix") ? "" : peer.substr(0, peer.rfind(':'));
}

HostLimit::HostLimit(uint64_t limit) : all_(limit), host_limit_(HostShare(limit)) {}

std::shared_ptr<const void> HostLimit::TryAcquire(absl::string_view peer) {
  const std::string host(HostOfCaller(peer));
  const bool has_host = host_limit_ != 0 && !host.empty();
  if (has_host) {
    MutexLock lock(&mu_);
    uint64_t& units = by_host_[host];
    if (units >= host_limit_) return nullptr;
    ++units;
  }
  const auto release_host = [this, has_host, host] {
    if (!has_host) return;
    MutexLock lock(&mu_);
    const auto found = by_host_.find(host);
    if (--found->second == 0) by_host_.erase(found);
  };
  if (!all_.TryAcquire()) {
    release_host();
    return nullptr;
  }
  return {this, [release_host](HostLimit* self) {
            self->all_.Release();
            release_host();
          }};
}

std::string HostLimit::DescribeFull() const {
  if (all_.IsFull()) return absl::StrCat(limit(), " calls");
  return absl::StrCat(host_limit_, " calls of one host");
}

}  // namespace sparseagg::service
