// What --memory-limit is spent on.
#ifndef SPARSEAGG_SERVICE_ADMISSION_MEMORY_SHARES_H_
#define SPARSEAGG_SERVICE_ADMISSION_MEMORY_SHARES_H_

#include <cstdint>

#include "service/base/limits.h"

namespace sparseagg::service {

// Below this the process itself takes so much of it that nothing can be promised.
inline constexpr uint64_t kMinMemoryLimitBytes = uint64_t{256} << 20;

// Bytes; 0 means no limit, as in Limits.
struct MemoryShares {
  uint64_t kept = 0;       // what rounds hold: uploads, submissions, results
  uint64_t in_flight = 0;  // messages and pages between the wire and a round
  uint64_t process = 0;    // everything else: code, threads, connections, freed memory that is kept for reuse
};

// The three add up to memory_limit_bytes. Where that is below kMinMemoryLimitBytes it is all for rounds.
MemoryShares DivideMemory(const Limits& limits);

// `limits`, with those lowered that memory_limit_bytes leaves no room for: messages and pages, of which one must fit
// into transit beside as much again that is held, connections, by what idle ones take, and tensors, by what is made of
// the spec of a round before it is one.
Limits FitToMemory(Limits limits);

// HTTP/2 flow-control window of a stream that the server does not read.
inline constexpr int kStreamWindowBytes = 64 << 10;
// The most memory of a stream that the server does not read: the window, gRPC's call and the server's reactor.
inline constexpr uint64_t kStreamBytes = kStreamWindowBytes + (uint64_t{32} << 10);

// What gRPC may hold of one message before it is refused as too large.
uint64_t MaxBufferedMessageBytes(const Limits& limits);

// Calls that may wait for rounds at once, by what each takes, of the process's share; 0: any number.
uint64_t MaxWaitingCalls(const Limits& limits);

// What the spec of a round may take on the wire: without a bound, what is made of it takes a hundred times as much
// before it is known to have too many tensors. 0: no limit.
uint64_t MaxSpecBytes(const Limits& limits);
// The same in fields.
uint64_t MaxSpecFields(const Limits& limits);

// What a page of a result takes on its way out: itself, and what it is serialised to. Saturates.
uint64_t PageInFlightBytes(uint64_t page_bytes);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_MEMORY_SHARES_H_
