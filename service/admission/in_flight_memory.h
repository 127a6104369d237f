// Memory of what is on its way: messages from the wire to a round, pages of results from a round to the wire.
#ifndef SPARSEAGG_SERVICE_ADMISSION_IN_FLIGHT_MEMORY_H_
#define SPARSEAGG_SERVICE_ADMISSION_IN_FLIGHT_MEMORY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "service/base/clock.h"
#include "service/base/timer.h"
#include "service/base/worker_pool.h"

namespace sparseagg::service {

class InFlightMemory;

// Bytes that InFlightMemory has given, given back on destruction. Not thread-safe.
class InFlightReservation {
 public:
  InFlightReservation() = default;
  InFlightReservation(InFlightReservation&& other) noexcept { Swap(other); }
  InFlightReservation& operator=(InFlightReservation&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~InFlightReservation() { Release(); }

  // The peer has done its part: from here on only `bytes` are taken, and the credit is not called in any more. Nothing
  // changes with what is held (InFlightMemory::TryReserveForStream).
  void ShrinkTo(uint64_t bytes);
  // From here on it is for the peer to end the call: what is held, too, is called in as what was acquired.
  void StartDeadline(std::function<void()> reclaim);
  void Release();
  uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return transit_ != nullptr; }

 private:
  friend class InFlightMemory;
  InFlightReservation(InFlightMemory* in_flight, uint64_t bytes, uint64_t id, bool is_held = false)
      : transit_(in_flight), bytes_(bytes), id_(id), is_held_(is_held) {}
  void Swap(InFlightReservation& other) {
    std::swap(transit_, other.transit_);
    std::swap(bytes_, other.bytes_);
    std::swap(id_, other.id_);
    std::swap(is_held_, other.is_held_);
  }

  InFlightMemory* transit_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t id_ = 0;       // in InFlightMemory::out_; 0: is not called in
  bool is_held_ = false;  // of TryReserveForStream
};

// Gives out credit in the order in which it was asked for. How much of a message has arrived only gRPC knows, so that
// credit is for all that one can have, and is asked for before the read begins: a stream whose turn has not come is not
// read, and flow control holds its client back.
//
// A peer that takes longer than kReclaimAfter while others wait has its credit called in: it must end then, and is
// called in again until it has. So nobody keeps others waiting for long by being slow once. Its time begins with
// `granted`, not while that waits for a thread.
//
// What is in transit never waits for anything but its peer and a thread, so that waiting for it cannot deadlock: memory
// that rounds keep is counted elsewhere (MemoryBudget) and is given or refused at once. Thread-safe.
class InFlightMemory {
 public:
  static constexpr absl::Duration kReclaimAfter = absl::Seconds(1);
  // How long those wait at most who cannot be held back for any time: a few turns of slow peers.
  static constexpr absl::Duration kBoundedWait = absl::Seconds(5);
  // How often it is looked after those called in, who need a moment to end, and whether more have to be.
  static constexpr absl::Duration kReclaimInterval = absl::Milliseconds(100);
  // Who has not ended after so many calls may not for long, and others are called in besides.
  static constexpr int kMaxReclaimAttempts = 3;

  enum class Wait {
    kUnbounded,  // for any time
    kBounded,    // for kBoundedWait
  };

  // `limit_bytes` 0: no limit. All but the limit are borrowed; `pool` is used from the first call on.
  InFlightMemory(uint64_t limit_bytes, const Clock* clock, Timer* timer, WorkerPool* pool);
  ~InFlightMemory();

  // Calls `granted` once: before returning, or from the pool when its turn has come, or with an empty credit when that
  // has taken longer than `wait`. `reclaim` is called, from the pool, only between `granted` and
  // InFlightReservation::ShrinkTo; it must see to it that the credit is released. Until it is, it is called again every
  // kReclaimInterval, while others wait. Returns the place in the line, 0 if there was no need to wait.
  uint64_t Acquire(uint64_t bytes, std::function<void(InFlightReservation)> granted, std::function<void()> reclaim,
                   Wait wait = Wait::kUnbounded);
  // True: `granted` was not called, and never will be.
  bool CancelWait(uint64_t place);
  // For what lasts as long as a stream: nothing if all such come to more than half of the limit. Messages that have
  // been granted all of it do not stand in the way, up to a quarter beyond the limit; the next ones wait until that has
  // been given back. Not called in before InFlightReservation::StartDeadline. Who is refused counts for kBoundedWait as
  // one of those who wait, or until there is room for all such: it comes again.
  std::optional<InFlightReservation> TryReserveForStream(uint64_t bytes);

  uint64_t limit() const { return limit_; }
  uint64_t taken() const;
  uint64_t num_waiting() const;

 private:
  friend class InFlightReservation;

  struct Waiter {
    uint64_t id;
    uint64_t bytes;
    std::function<void(InFlightReservation)> granted;
    std::function<void()> reclaim;
    Timer::Id give_up;  // 0: waits for any time
  };
  struct Out {
    uint64_t bytes;
    absl::Duration since;  // Clock::Monotonic
    std::function<void()> reclaim;
    bool is_being_called = false;  // or waits for a thread to be
    int calls = 0;                 // that have been made
  };

  // What is larger than the limit goes alone, beside what is held.
  bool FitsLocked(uint64_t bytes) const { return limit_ == 0 || taken_ == held_ || taken_ + bytes <= limit_; }
  bool MayHoldLocked(uint64_t bytes) const {
    return limit_ == 0 || (held_ + bytes <= limit_ / 2 && taken_ + bytes <= limit_ + limit_ / 4);
  }
  // Wanted by those who were refused lately.
  uint64_t RefusedLocked() const;
  void GiveUp(uint64_t id);
  std::deque<Waiter>::iterator FindLocked(uint64_t id);
  uint64_t StartDeadline(uint64_t bytes, std::function<void()> reclaim);
  // The peer's time begins. Returns the credit's id.
  uint64_t StartDeadlineLocked(uint64_t bytes, std::function<void()> reclaim);
  void GrantLocked();
  void ArmLocked();
  void OnTimer();
  void Reclaim(uint64_t id);
  void Release(uint64_t bytes, uint64_t id, bool is_held);

  const uint64_t limit_;
  const Clock& clock_;
  Timer& timer_;
  WorkerPool& pool_;
  mutable std::mutex mu_;
  // All guarded by mu_.
  uint64_t taken_ = 0;
  uint64_t held_ = 0;  // of taken_, by TryReserveForStream
  uint64_t next_id_ = 1;
  std::deque<Waiter> waiting_;
  uint64_t wanted_ = 0;                                    // by all of them
  uint64_t refused_bytes_ = 0;                             // by TryReserveForStream, lately
  uint64_t refused_each_ = 0;                              // the last of them
  absl::Duration refused_at_ = -absl::InfiniteDuration();  // Clock::Monotonic
  std::map<uint64_t, Out> out_;                            // not settled, the oldest first
  std::map<uint64_t, Out> being_reclaimed_;                // the same, once the pool was told to
  Timer::Id alarm_ = 0;                                    // 0: none is set
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_IN_FLIGHT_MEMORY_H_
