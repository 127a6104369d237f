// The state of a round, the times of its changes, and the calls that wait for its end.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_LIFE_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_LIFE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"
#include "service/rounds/round_snapshot.h"
#include "service/store/records.h"

namespace sparseagg::service {

// Owned by a Round. Add, then one of: the end of the round, the timeout, Release, Remove. The destructor drops the
// waits without calling their `done`. Callbacks run without the lock. Thread-safe.
class RoundWaits {
 public:
  using Id = uint64_t;  // never 0

  // Clock and timer are borrowed.
  RoundWaits(const Clock& clock, Timer& timer) : clock_(clock), timer_(timer) {}

  // Calls `done` once: before the return if End has been called; else by End or Release on their thread, or on the
  // timer's thread after `timeout`. `owner`: keeps this object; a timeout that finds it gone does nothing.
  Id Add(absl::Duration timeout, std::function<void()> done, std::weak_ptr<const void> owner);
  // Returns: true if `done` will not be called; false if it has been, or another thread is about to.
  bool Remove(Id id);
  // Ends all waits.
  void Release();
  // As Release, and waits that come later end at once.
  void End();

 private:
  struct Wait {
    std::function<void()> done;
    Timer::Id timer = 0;
  };
  void Expire(Id id);

  const Clock& clock_;
  Timer& timer_;
  Mutex mu_;
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
  Id next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<Id, Wait> waits_ ABSL_GUARDED_BY(mu_);
};

// OPEN, perhaps Seal to SEALED, then Close to FINALIZING, then End to DONE, FAILED or CANCELLED; End may also come
// first. No method that changes the state allocates. Not thread-safe: Round guards it.
class RoundLife {
 public:
  // `created_at`: Clock::Monotonic; before the start of the clock for a round of an earlier run.
  RoundLife(absl::Time create_time, absl::Duration created_at) : create_time_(create_time), created_at_(created_at) {}

  RoundState state() const { return state_; }
  bool is_open() const { return state_ == RoundState::kOpen; }
  bool is_closed() const { return IsClosed(state_); }
  bool has_ended() const { return HasEnded(state_); }
  const std::string& reason() const { return reason_; }
  absl::Duration closed_at() const { return closed_at_; }  // Clock::Monotonic
  const Results& results() const { return results_; }
  // Sets the members of the snapshot that this object knows. `now`: Clock::Monotonic.
  void Fill(RoundSnapshot& snapshot, absl::Duration now) const;

  // Requires: the round is open.
  void Seal() { state_ = RoundState::kSealed; }
  // The sum stays until the round is gone: a cluster's coordinator has merged it elsewhere. Requires: the round is
  // DONE.
  void KeepSum() { keeps_sum_ = finish_started_ = true; }
  bool keeps_sum() const { return keeps_sum_; }
  // Requires: the round is not closed.
  void Close(const Moment& now);
  // Returns: the time from `now` to the expiry of a round that ends now.
  absl::Duration TimeToExpiry(absl::Duration result_ttl, const Moment& now) const;
  // `time_to_expiry`: of TimeToExpiry. Returns: the time since the close; nullopt: the round was not closed.
  std::optional<absl::Duration> End(RoundState state, absl::Status failure, std::string reason,
                                    absl::Duration time_to_expiry, const Moment& now);
  void SetResults(Results results) { results_ = std::move(results); }

  // Commits that have found the round open and have not returned from Add. The finish waits for them.
  void BeginCommit() { ++num_committing_; }
  // Returns: true if nothing else holds the finish up.
  bool EndCommit();
  bool is_committing() const { return num_committing_ > 0; }
  // Returns: true once: when the round is closed and no commit runs.
  bool TryStartFinish();

  // What the store is to keep: of the next state, which a close or cancel makes at `now`; of the present one.
  StateRecord NextRecord(StateRecord::Name name, absl::string_view reason, absl::Time now) const;
  // Requires: the round is not open.
  StateRecord Record() const;
  // For a restart: the times at which an earlier run ended and closed the round. `age`: how much of its result_ttl is
  // over.
  void RestoreEndTime(absl::Time time, absl::Duration age) { restored_end_ = {time, age}; }
  void RestoreCloseTime(absl::Time time) { close_time_ = time; }

 private:
  bool CanFinish() const { return is_closed() && num_committing_ == 0 && !finish_started_; }
  // Returns: the end time of a round that ends now.
  absl::Time EndTime(const Moment& now) const;

  const absl::Time create_time_;
  const absl::Duration created_at_;
  RoundState state_ = RoundState::kOpen;
  std::string reason_;
  absl::Status failure_;
  absl::Time close_time_ = absl::InfinitePast();
  absl::Time end_time_ = absl::InfinitePast();
  absl::Time expire_time_ = absl::InfinitePast();
  absl::Duration closed_at_ = absl::ZeroDuration();
  absl::Duration finish_ = absl::ZeroDuration();  // from the close to the end
  Results results_;
  uint64_t num_committing_ = 0;
  bool finish_started_ = false;
  bool keeps_sum_ = false;
  std::optional<std::pair<absl::Time, absl::Duration>> restored_end_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_LIFE_H_
