// InFlightMemory: the limit on memory between the network and the rounds: messages, result pages and open streams.
#ifndef SPARSEAGG_SERVICE_ADMISSION_IN_FLIGHT_MEMORY_H_
#define SPARSEAGG_SERVICE_ADMISSION_IN_FLIGHT_MEMORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"
#include "service/base/worker_pool.h"

namespace sparseagg::service {

class InFlightMemory;
struct InFlightPeer;

// Bytes reserved in an InFlightMemory, which must outlive the reservation. The destructor releases the bytes. A method
// of an empty reservation does nothing. Not thread-safe.
class InFlightReservation {
 public:
  InFlightReservation() = default;  // empty
  InFlightReservation(InFlightReservation&& other) noexcept { Swap(other); }
  // What this reservation held is released when `other` is destroyed.
  InFlightReservation& operator=(InFlightReservation&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~InFlightReservation() { Release(); }

  // Removes the peer's deadline and keeps at most `bytes`; never grows. Call it when the server no longer waits for the
  // peer: a message has arrived completely, or the peer has taken a page. Does nothing to a reservation of
  // TryReserveForStream, which keeps its bytes, and the deadline that StartDeadline has set.
  void ShrinkTo(uint64_t bytes);
  // Starts a deadline for the peer if the reservation has none. Call it when the server has finished the call and waits
  // for the peer to take its status. `reclaim`: as in InFlightMemory::Acquire.
  void StartDeadline(std::function<void()> reclaim);
  // Returns all bytes now. The reservation is empty afterwards.
  void Release();

  uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return memory_ != nullptr; }  // false: empty

 private:
  friend class InFlightMemory;
  InFlightReservation(InFlightMemory* memory, InFlightPeer* host, uint64_t bytes, uint64_t deadline_id,
                      bool is_for_stream = false)
      : memory_(memory), host_(host), bytes_(bytes), deadline_id_(deadline_id), is_for_stream_(is_for_stream) {}
  void Swap(InFlightReservation& other) {
    std::swap(memory_, other.memory_);
    std::swap(host_, other.host_);
    std::swap(bytes_, other.bytes_);
    std::swap(deadline_id_, other.deadline_id_);
    std::swap(is_for_stream_, other.is_for_stream_);
  }

  InFlightMemory* memory_ = nullptr;
  InFlightPeer* host_ = nullptr;  // of memory_
  uint64_t bytes_ = 0;
  uint64_t deadline_id_ = 0;    // 0: the peer has no deadline
  bool is_for_stream_ = false;  // made by TryReserveForStream
};

// What the calls of one host hold. Owned by InFlightMemory, under its lock.
struct InFlightPeer {
  std::string name;
  uint64_t bytes = 0;
  uint64_t stream_bytes = 0;   // part of `bytes`
  uint64_t reservations = 0;   // some of which may have shrunk to nothing
  std::set<uint64_t> tickets;  // of its calls that wait
};

// The server's limit on bytes between the network and its rounds (aggregations), with a queue in front of it.
//
// Messages and pages: a handler calls Acquire before it reads a message or makes a page of a result. Only gRPC knows
// how much of a message has arrived, so a handler reserves the largest message possible, and shrinks the reservation
// when the message is complete. A stream in the queue is not read, and HTTP/2 flow control holds its client back.
//
// Hosts: memory goes to the waiting host that holds least, streams included, so that the many calls of one host do not
// make another wait for all of them. Calls of one host are first come, first served. While the call whose turn it is
// does not fit, all others wait. And a host that holds something gets at most three quarters of the limit, so that
// there is memory for another at once. A host that holds nothing may get all of it.
//
// Streams: gRPC needs some memory for every open call. A call that carries chunks or pages, or whose answer is not
// small, first reserves that memory with TryReserveForStream, which grants or refuses it at once. Calls of WaitRound
// have a count limit instead.
//
// Slow peers: a grant starts the peer's deadline, which expires kReclaimAfter later. The deadline has an effect only
// while another call needs memory. While one does, `reclaim` of the late peer's call is called every kReclaimInterval,
// until the handler shrinks or releases the reservation. The oldest reservations are reclaimed first, only as many as
// free the bytes that the waiting calls need.
//
// No deadlock, if callers keep a rule: what a holder waits for before it releases is its peer or a pool thread, never
// another reservation.
// Memory that rounds keep is another limit (MemoryBudget), which never makes a caller wait.
//
// Callbacks run without the lock and may call every method. No method blocks; Acquire takes as long as a `granted` that
// it calls itself.
//
//   memory.Acquire(max_message_bytes,
//                  [=](InFlightReservation granted) { call->Read(std::move(granted)); },  // empty: only if kBounded
//                  [=] { call->Cancel(); });                                              // reclaim
//   …                                    // the message arrives
//   reservation.ShrinkTo(message_bytes);  // removes the deadline
//   reservation.Release();                // the round has the message
//
// Owned by ServerContext. Thread-safe.
class InFlightMemory {
 public:
  // Time from the grant (or StartDeadline) after which a peer is late.
  static constexpr absl::Duration kReclaimAfter = absl::Seconds(1);
  // Interval between reclaim attempts. An attempt needs a moment to end its call.
  static constexpr absl::Duration kReclaimInterval = absl::Milliseconds(100);
  // After so many attempts the call is probably stuck: another one is reclaimed, too, although this one's bytes would
  // be enough. The attempts for this one go on.
  static constexpr int kAttemptsUntilStuck = 3;
  // Longest wait of Wait::kBounded: a few deadlines of slow peers.
  static constexpr absl::Duration kBoundedWait = absl::Seconds(5);

  enum class Wait {
    kUnbounded,  // waits until granted: for streams, which flow control holds back
    kBounded,    // gives up after kBoundedWait: for unary calls, which the client has sent completely
  };

  // `limit_bytes` 0: no limit. Clock, timer and pool are borrowed; the constructor does not use `pool`, which may be
  // constructed later.
  InFlightMemory(uint64_t limit_bytes, const Clock* clock, Timer* timer, WorkerPool* pool);
  // Drops waiting calls, without calling their `granted`. Requires: no reservation exists, and the pool has run all
  // callbacks.
  ~InFlightMemory();

  // Reserves `bytes` and calls `granted` with the reservation, exactly once, unless CancelWait succeeds first.
  //
  // If the bytes are free, the host may have them, and neither a call of this host nor one of a host that holds no more
  // waits, `granted` runs before Acquire returns, on the calling thread. Otherwise it runs on the pool, perhaps before
  // Acquire has returned the ticket. With Wait::kBounded it gets an empty reservation after kBoundedWait. When only
  // streams hold memory, the next request is granted whatever its size, even beyond the limit.
  //
  // `peer`: the caller's name as gRPC gives it, with its port, "ipv4:127.0.0.1:1234" or "ipv6:%5B::1%5D:1234"; its host
  // is what is before the last colon. Empty, or of a Unix socket: of no host, and without a host's limit.
  //
  // `reclaim` runs on the pool, zero or more times, while the peer is late and memory is needed; an attempt that has
  // begun may end after ShrinkTo or Release. It must make the owner release the reservation soon.
  //
  // Returns: the ticket for CancelWait, or 0 if `granted` ran on the calling thread.
  uint64_t Acquire(uint64_t bytes, std::function<void(InFlightReservation)> granted, std::function<void()> reclaim,
                   Wait wait = Wait::kUnbounded, absl::string_view peer = "");
  // Removes a waiting call from the queue. Returns: true if `granted` has not been called and will not be.
  bool CancelWait(uint64_t ticket);

  // Reserves `bytes` for as long as a stream lasts, without a deadline (InFlightReservation::StartDeadline sets one).
  // All streams together get at most half of the limit; messages and streams together at most five quarters, of which
  // the last quarter is for streams alone: messages wait until the total is below the limit again. Streams do not wait,
  // and so pass the calls in the queue.
  //
  // `peer`: as of Acquire; a host gets at most three quarters of what streams may have.
  //
  // Returns: nullopt if there is no room. Each refusal asks for the reclaim of one slow peer; the wish lapses after
  // kBoundedWait, or when a stream reservation succeeds.
  std::optional<InFlightReservation> TryReserveForStream(uint64_t bytes, absl::string_view peer = "");

  uint64_t limit() const { return limit_; }
  uint64_t reserved() const;
  uint64_t num_waiting() const;

 private:
  friend class InFlightReservation;

  // A call of Acquire that waits.
  struct Waiter {
    InFlightPeer* host;
    uint64_t bytes;
    std::function<void(InFlightReservation)> granted;
    std::function<void()> reclaim;
    Timer::Id timeout;  // 0: the wait is unbounded
  };
  // The deadline of a peer.
  struct Deadline {
    uint64_t bytes;
    absl::Duration since;  // Clock::Monotonic
    std::function<void()> reclaim;
    bool is_attempt_posted = false;  // an attempt runs, or waits for a pool thread
    int num_attempts = 0;            // attempts that have ended
  };

  bool FitsLocked(const InFlightPeer& host, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool StreamFitsLocked(const InFlightPeer& host, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsMemoryNeededLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  InFlightPeer* HostLocked(absl::string_view peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Forgets the host if it has no reservation and does not wait.
  void ForgetIdleLocked(InFlightPeer* host) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Waiter> RemoveWaiterLocked(uint64_t ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireWait(uint64_t ticket);
  // Grants to the waiter whose turn it is, while it fits.
  void GrantLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  InFlightReservation ReserveLocked(InFlightPeer* host, uint64_t bytes, bool is_for_stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `is_all`: the reservation ends.
  void Return(InFlightPeer* host, uint64_t bytes, uint64_t deadline_id, bool is_for_stream, bool is_all);

  // Returns: the id of the deadline.
  uint64_t StartDeadline(uint64_t bytes, std::function<void()> reclaim);
  uint64_t StartDeadlineLocked(uint64_t bytes, std::function<void()> reclaim) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets reclaim_timer_ if memory is needed and there is, or will be, a deadline to act on.
  void ScheduleReclaimsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs on the timer: picks late peers and posts an attempt for each of them.
  void PostReclaims();
  void AttemptReclaim(uint64_t deadline_id);

  const uint64_t limit_;
  const Clock& clock_;
  Timer& timer_;
  WorkerPool& pool_;
  mutable Mutex mu_;
  uint64_t reserved_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t stream_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // part of reserved_, by TryReserveForStream
  std::map<std::string, InFlightPeer, std::less<>> hosts_ ABSL_GUARDED_BY(mu_);  // that hold memory or wait for it
  std::set<InFlightPeer*> waiting_hosts_ ABSL_GUARDED_BY(mu_);
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;                // of tickets and deadlines
  std::map<uint64_t, Waiter> waiters_ ABSL_GUARDED_BY(mu_);  // by ticket
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;          // of all waiters
  uint64_t num_refused_ ABSL_GUARDED_BY(mu_) = 0;            // refused streams for which nothing was reclaimed yet
  absl::Duration refused_until_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();  // refusals count until then
  std::map<uint64_t, Deadline> deadlines_ ABSL_GUARDED_BY(mu_);   // of peers not being reclaimed yet; oldest first
  std::map<uint64_t, Deadline> reclaiming_ ABSL_GUARDED_BY(mu_);  // of peers that are being reclaimed
  Timer::Id reclaim_timer_ ABSL_GUARDED_BY(mu_) = 0;              // 0: not set
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_IN_FLIGHT_MEMORY_H_
