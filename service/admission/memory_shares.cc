#include "service/admission/memory_shares.h"

#include <algorithm>

#include "host/base/saturating.h"

namespace sparseagg::service {
namespace {

// So far beyond max_message_bytes, at most, a message is refused by us, who name the flag; further on by gRPC.
constexpr uint64_t kMostFuseBytes = uint64_t{1} << 20;

// Without a limit of messages: what is reckoned with.
constexpr uint64_t kLikelyMessageBytes = uint64_t{64} << 20;

constexpr uint64_t kProcessBytes = uint64_t{64} << 20;

// gRPC's of a connection without calls (2000 of them measured).
constexpr uint64_t kConnectionBytes = uint64_t{20} << 10;

// gRPC's and ours of a long poll (15 000 of them measured).
constexpr uint64_t kWaitBytes = uint64_t{16} << 10;

// Of a tensor in the spec of a round: its name and a dozen numbers.
constexpr uint64_t kLikelyTensorBytes = 512;
constexpr uint64_t kLeastSpecBytes = uint64_t{64} << 10;
// A tensor's own fields and those of its aggregation are 22.
constexpr uint64_t kLikelyTensorFields = 32;
constexpr uint64_t kLeastSpecFields = 4096;
// What is made of one before the round is there: of as many fields as it may have, of sixty bytes each, and of itself.
constexpr uint64_t kMadeOfTensorBytes = 4096;

}  // namespace

uint64_t MaxBufferedMessageBytes(const Limits& limits) {
  const uint64_t bytes = limits.max_message_bytes == 0 ? kLikelyMessageBytes : limits.max_message_bytes;
  return SaturatingAdd(bytes, std::min(kMostFuseBytes, bytes / 4 + 4096));
}

uint64_t MaxWaitingCalls(const Limits& limits) { return DivideMemory(limits).process / 4 / kWaitBytes; }

uint64_t MaxSpecBytes(const Limits& limits) {
  if (limits.max_tensors == 0) return 0;
  return std::max(kLeastSpecBytes, SaturatingMultiply(kLikelyTensorBytes, limits.max_tensors));
}

uint64_t MaxSpecFields(const Limits& limits) {
  if (limits.max_tensors == 0) return 0;
  return std::max(kLeastSpecFields, SaturatingMultiply(kLikelyTensorFields, limits.max_tensors));
}

uint64_t PageInFlightBytes(uint64_t page_bytes) { return SaturatingMultiply(2, page_bytes); }

MemoryShares DivideMemory(const Limits& limits) {
  const uint64_t limit = limits.memory_limit_bytes;
  if (limit == 0) return {};
  // Half of it for messages, so that two can be received at the same time in any case.
  const uint64_t least_transit = SaturatingMultiply(4, MaxBufferedMessageBytes(limits));
  if (limit < kMinMemoryLimitBytes) return {limit, least_transit, 0};
  MemoryShares shares;
  shares.process = kProcessBytes + limit / 16;
  shares.in_flight = std::min(std::max(limit / 8, least_transit), limit / 2);
  shares.kept = limit - shares.process - shares.in_flight;
  return shares;
}

Limits FitToMemory(Limits limits) {
  if (limits.memory_limit_bytes < kMinMemoryLimitBytes) return limits;
  const auto lower = [](uint64_t most, uint64_t& limit) { limit = limit == 0 ? most : std::min(limit, most); };
  // InFlightMemory grows with max_message_bytes to half of the limit; of that, half is left beside what is held.
  const uint64_t most_message = limits.memory_limit_bytes / 4 - kMostFuseBytes;
  lower(limits.max_message_bytes == 0 ? std::min(kLikelyMessageBytes, most_message) : most_message,
        limits.max_message_bytes);
  const MemoryShares shares = DivideMemory(limits);
  lower(shares.in_flight / 2 / PageInFlightBytes(1), limits.max_page_bytes);
  // A quarter of the process's share each. So much is for calls that wait (MaxWaitingCalls), three quarters for freed
  // memory that is kept (main.cc), and code and threads take some: more than the share, seldom all there at once. Near
  // the limit nothing freed is kept (HeapTrimmer), which is what makes it add up.
  lower(shares.process / 4 / kConnectionBytes, limits.max_connections);
  lower(shares.process / 4 / kMadeOfTensorBytes, limits.max_tensors);
  return limits;
}

}  // namespace sparseagg::service
