// RoundWaits: the calls that wait for the end of a round.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_WAITS_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_WAITS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_WAITS_H_
