// Memory of what is on its way: messages from the wire to a round, pages of results from a round to the wire.
#ifndef SPARSEAGG_SERVICE_TRANSIT_H_
#define SPARSEAGG_SERVICE_TRANSIT_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "service/clock.h"
#include "service/timer.h"
#include "service/worker_pool.h"

namespace sparseagg::service {

class Transit;

// Bytes that Transit has given, given back on destruction. Not thread-safe.
class Credit {
 public:
  Credit() = default;
  Credit(Credit&& other) noexcept { Swap(other); }
  Credit& operator=(Credit&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~Credit() { Release(); }

  // The peer has done its part: from here on only `bytes` are taken, and the credit is not called in any more.
  void Settle(uint64_t bytes);
  void Release();
  uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return transit_ != nullptr; }

 private:
  friend class Transit;
  Credit(Transit* transit, uint64_t bytes, uint64_t id) : transit_(transit), bytes_(bytes), id_(id) {}
  void Swap(Credit& other) {
    std::swap(transit_, other.transit_);
    std::swap(bytes_, other.bytes_);
    std::swap(id_, other.id_);
  }

  Transit* transit_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t id_ = 0;  // in Transit::out_; 0: settled, kHeld: of TryHold
};

// Gives out credit in the order in which it was asked for. How much of a message has arrived only gRPC knows, so that
// credit is for all that one can have, and is asked for before the read begins: a stream whose turn has not come is not
// read, and flow control holds its client back.
//
// A peer that takes longer than kPatience while others wait has its credit called in: it must end then, and is called
// in again until it has. So nobody can keep others waiting by being slow. Its time begins with `granted`, not while
// that waits for a thread.
//
// What is in transit never waits for anything but its peer and a thread, so that waiting for it cannot deadlock: memory
// that rounds keep is counted elsewhere (MemoryBudget) and is given or refused at once. Thread-safe.
class Transit {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(1);
  // How long those wait at most who cannot be held back for any time: a few turns of slow peers.
  static constexpr absl::Duration kShortWait = absl::Seconds(5);
  // How often it is looked after those called in, who need a moment to end, and whether more have to be.
  static constexpr absl::Duration kBetweenCalls = absl::Milliseconds(100);

  // `limit_bytes` 0: no limit. All but the limit are borrowed; `pool` is used from the first call on.
  Transit(uint64_t limit_bytes, const Clock* clock, Timer* timer, WorkerPool* pool);
  ~Transit();

  // Calls `granted` once: before returning, or from the pool when its turn has come. `call_in` is called, from the
  // pool, only between `granted` and Credit::Settle; it must see to it that the credit is released. Until it is, it is
  // called again every kBetweenCalls, while others wait.
  void Acquire(uint64_t bytes, std::function<void(Credit)> granted, std::function<void()> call_in);
  // The same, with an empty credit for `granted` if the turn has not come after kShortWait.
  void AcquireSoon(uint64_t bytes, std::function<void(Credit)> granted, std::function<void()> call_in);
  // For what lasts as long as a stream: nothing if all such come to more than half of the limit. Messages that have
  // been granted all of it do not stand in the way, up to a quarter beyond the limit; the next ones wait until that has
  // been given back. Never called in.
  std::optional<Credit> TryHold(uint64_t bytes);

  uint64_t limit() const { return limit_; }
  uint64_t taken() const;
  uint64_t num_waiting() const;

 private:
  friend class Credit;
  static constexpr uint64_t kHeld = ~uint64_t{0};

  struct Waiter {
    uint64_t id;
    uint64_t bytes;
    std::function<void(Credit)> granted;
    std::function<void()> call_in;
    Timer::Id give_up;  // 0: waits for any time
  };
  struct Out {
    uint64_t bytes;
    absl::Duration since;  // Clock::Monotonic
    std::function<void()> call_in;
    bool is_being_called = false;  // or waits for a thread to be
  };

  // What is larger than the limit goes alone, beside what is held.
  bool FitsLocked(uint64_t bytes) const { return limit_ == 0 || taken_ == held_ || taken_ + bytes <= limit_; }
  void AcquireWithin(absl::Duration wait, uint64_t bytes, std::function<void(Credit)> granted,
                     std::function<void()> call_in);
  void GiveUp(uint64_t id);
  // The peer's time begins. Returns the credit's id.
  uint64_t WatchLocked(uint64_t bytes, std::function<void()> call_in);
  void GrantLocked();
  void ArmLocked();
  void OnTimer();
  void CallIn(uint64_t id);
  void GiveBack(uint64_t bytes, uint64_t id);

  const uint64_t limit_;
  const Clock& clock_;
  Timer& timer_;
  WorkerPool& pool_;
  mutable std::mutex mu_;
  // All guarded by mu_.
  uint64_t taken_ = 0;
  uint64_t held_ = 0;  // of taken_, by TryHold
  uint64_t next_id_ = 1;
  std::deque<Waiter> waiting_;
  uint64_t wanted_ = 0;                // by all of them
  std::map<uint64_t, Out> out_;        // not settled, the oldest first
  std::map<uint64_t, Out> called_in_;  // the same, once the pool was told to
  Timer::Id alarm_ = 0;                // 0: none is set
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TRANSIT_H_
