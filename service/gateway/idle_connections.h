// The HTTP connections that wait for their peers, and give way to new ones.
#ifndef SPARSEAGG_SERVICE_GATEWAY_IDLE_CONNECTIONS_H_
#define SPARSEAGG_SERVICE_GATEWAY_IDLE_CONNECTIONS_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"
#include "service/net/connection_table.h"

namespace sparseagg::service {

// What a connection waits for. The first ones give way first.
enum class Idleness {
  kUnused,    // its first request, or, after the response that ends it, its end
  kUsed,      // another request
  kExchange,  // the rest of a request, the event of a long poll, or that its peer reads a response
};

// Connections enter on the listener's thread, from then on they enter and leave on the gateway's; the listener's thread
// ends some.
//
//   IdleConnections::Place place(&idle, fd, host);
//   place.Enter(Idleness::kUnused);
//   place.Leave();                   // the server works for the connection; also before the socket is closed
//
// Owned by the gateway. Outlives the places. Thread-safe; a Place is not.
class IdleConnections {
 public:
  static constexpr absl::Duration kMinIdle = absl::Seconds(1);

  // Borrows both. `connections`: counts all connections by their hosts, idle or not. `min_idle`: a connection that has
  // waited for this long is idle.
  IdleConnections(const Clock* clock, const ConnectionTable* connections, absl::Duration min_idle = kMinIdle)
      : clock_(*clock), connections_(*connections), min_idle_(min_idle) {}

  class Place;

  // Ends a connection to make room for one from `host`: of a host that holds most, the oldest that is kUnused, else the
  // kUsed one that has waited longest, else the kExchange one. It is idle if it has waited for min_idle, or is kUnused
  // and `host` has no connection. Ending means shutdown(): the connection learns of it from its socket. Returns: false
  // if none GivesWay.
  bool EndIdlest(const std::string& host) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Key {
    Idleness idleness = Idleness::kUnused;
    uint64_t number = 0;  // counts entries
    auto operator<=>(const Key&) const = default;
  };
  struct Idle {
    int fd;
    const std::string* host;
    absl::Duration since;  // Clock::Monotonic
  };

  const Clock& clock_;
  const ConnectionTable& connections_;
  const absl::Duration min_idle_;
  Mutex mu_;
  uint64_t entries_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Key, Idle> idle_ ABSL_GUARDED_BY(mu_);
};

// A connection's place among the idle ones.
class IdleConnections::Place {
 public:
  Place(IdleConnections* idle, int fd, std::string host) : idle_(*idle), fd_(fd), host_(std::move(host)) {}
  ~Place() { Leave(); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // The connection begins to wait. No effect if it waits for the same already, or was ended.
  void Enter(Idleness idleness);
  // No effect if the connection does not wait.
  void Leave();
  // Whether EndIdlest has ended the connection.
  bool IsEnded();

 private:
  IdleConnections& idle_;
  const int fd_;
  const std::string host_;
  std::optional<Key> key_;  // set: it waits, or was ended while it did
  bool is_ended_ = false;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_IDLE_CONNECTIONS_H_
