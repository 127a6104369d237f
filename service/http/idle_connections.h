// The HTTP connections without a request, which give way to new ones.
#ifndef SPARSEAGG_SERVICE_HTTP_IDLE_CONNECTIONS_H_
#define SPARSEAGG_SERVICE_HTTP_IDLE_CONNECTIONS_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"

namespace sparseagg::service {

// Connections that have no request under way: they wait for one, have sent a part of its head, or linger after a
// response that ends them. Connections enter and leave on the gateway's thread; the listener's thread ends some.
//
//   IdleConnections::Place place(&idle, fd);
//   place.Enter(false);   // no request has come on this connection yet
//   place.Leave();        // a request has; also before the socket is closed
//
// Owned by the gateway. Outlives the places. Thread-safe; a Place is not.
class IdleConnections {
 public:
  // A connection that has had a request is not ended before it has been idle for this long: its client may be about to
  // send the next one.
  static constexpr absl::Duration kMinIdle = absl::Seconds(1);

  explicit IdleConnections(const Clock* clock) : clock_(*clock) {}  // borrowed

  class Place;

  // Ends a connection to make room: the oldest that was not used or only lingers, else the one that has been idle
  // longest, if that is kMinIdle or more. Ending means shutdown(): the connection learns of it from its socket.
  // Returns: false if there is none.
  bool EndIdlest() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Connections that end first come first. The number counts entries.
  struct Key {
    bool was_used = false;
    uint64_t number = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Idle {
    int fd;
    absl::Duration since;  // Clock::Monotonic
  };

  const Clock& clock_;
  Mutex mu_;
  uint64_t entries_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Key, Idle> idle_ ABSL_GUARDED_BY(mu_);
};

// A connection's place among the idle ones.
class IdleConnections::Place {
 public:
  Place(IdleConnections* idle, int fd) : idle_(*idle), fd_(fd) {}
  ~Place() { Leave(); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // `was_used`: the connection has had a request and may get another. No effect if it is idle already.
  void Enter(bool was_used);
  // No effect if the connection is not idle.
  void Leave();

 private:
  IdleConnections& idle_;
  const int fd_;
  std::optional<Key> key_;  // set: idle, or ended
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HTTP_IDLE_CONNECTIONS_H_
