// The HTTP connections that wait for their peers, and give way to new ones.
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

// What a connection waits for. The first ones give way first.
enum class Idleness {
  kUnused,    // its first request, or, after the response that ends it, its end
  kUsed,      // another request
  kExchange,  // the rest of a request, the event of a long poll, or that its peer reads a response
};

// Connections enter and leave on the gateway's thread; the listener's thread ends some.
//
//   IdleConnections::Place place(&idle, fd);
//   place.Enter(Idleness::kUnused);
//   place.Leave();                   // the server works for the connection; also before the socket is closed
//
// Owned by the gateway. Outlives the places. Thread-safe; a Place is not.
class IdleConnections {
 public:
  // A connection that was used is not ended before it has waited for this long.
  static constexpr absl::Duration kMinIdle = absl::Seconds(1);

  explicit IdleConnections(const Clock* clock) : clock_(*clock) {}  // borrowed

  class Place;

  // Ends a connection to make room: the oldest that is kUnused, else the kUsed one that has waited longest, else the
  // kExchange one, if it has waited for kMinIdle. Ending means shutdown(): the connection learns of it from its socket.
  // Returns: false if there is none.
  bool EndIdlest() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Key {
    Idleness idleness = Idleness::kUnused;
    uint64_t number = 0;  // counts entries
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

  // The connection begins to wait. No effect if it waits for the same already.
  void Enter(Idleness idleness);
  // No effect if the connection does not wait.
  void Leave();

 private:
  IdleConnections& idle_;
  const int fd_;
  std::optional<Key> key_;  // set: it waits, or was ended
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HTTP_IDLE_CONNECTIONS_H_
