#include "service/memory_shares.h"

#include <algorithm>

namespace sparseagg::service {
namespace {

// So far beyond max_message_bytes, at most, a message is refused by us, who name the flag; further on by gRPC.
constexpr uint64_t kMostFuseBytes = uint64_t{1} << 20;

// Without a limit of messages: what is reckoned with.
constexpr uint64_t kLikelyMessageBytes = uint64_t{64} << 20;

constexpr uint64_t kProcessBytes = uint64_t{64} << 20;

// gRPC's of a connection without calls (2000 of them measured).
constexpr uint64_t kConnectionBytes = uint64_t{20} << 10;

}  // namespace

uint64_t MostMessageBytes(const Limits& limits) {
  const uint64_t bytes = limits.max_message_bytes == 0 ? kLikelyMessageBytes : limits.max_message_bytes;
  return bytes + std::min(kMostFuseBytes, bytes / 4 + 4096);
}

uint64_t MostConnections(const Limits& limits) {
  // A quarter of the process's share: freed memory that is kept has three quarters (main.cc).
  const uint64_t fitting = Divide(limits).process / 4 / kConnectionBytes;
  if (fitting == 0 || limits.max_connections == 0) return std::max(fitting, limits.max_connections);
  return std::min(fitting, limits.max_connections);
}

MemoryShares Divide(const Limits& limits) {
  const uint64_t limit = limits.memory_limit_bytes;
  if (limit == 0) return {};
  // Half of it for messages, so that two can be received at the same time in any case.
  const uint64_t least_transit = 4 * MostMessageBytes(limits);
  if (limit < kLeastMemoryLimit) return {limit, least_transit, 0};
  MemoryShares shares;
  shares.process = kProcessBytes + limit / 16;
  shares.transit = std::min(std::max(limit / 8, least_transit), limit / 2);
  shares.kept = limit - shares.process - shares.transit;
  return shares;
}

}  // namespace sparseagg::service
