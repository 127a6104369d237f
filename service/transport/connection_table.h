// The connections that are open: counts them, and ends them whoever holds them.
#ifndef SPARSEAGG_SERVICE_TRANSPORT_CONNECTIONS_H_
#define SPARSEAGG_SERVICE_TRANSPORT_CONNECTIONS_H_

#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "absl/time/time.h"
#include "service/base/clock.h"
#include "service/transport/owned_fd.h"

namespace sparseagg::service {

// A peer as gRPC calls it: "ipv4:127.0.0.1:1234", "ipv6:%5B::1%5D:1234". Clients on Unix sockets have no names.
std::string PeerName(const sockaddr_storage& peer);

// gRPC does not say which connections it has, and cannot end one: a call that is cancelled lasts until what gRPC has
// put into its connection is out, which a peer that reads nothing can put off for ever. So each connection has a second
// descriptor, here. Whoever ends a connection must shut it down, as gRPC does, and not only close its own descriptor.
// Thread-safe.
class ConnectionTable {
 public:
  // What has had no room for more for so long, at every look that was taken, and whose peer has taken less than
  // kLeastTaken, is stuck. The system sees room only when much of its buffer is free, which can be megabytes: a slow
  // peer may have done nothing but read.
  static constexpr absl::Duration kStuck = absl::Seconds(2);
  static constexpr uint64_t kLeastTaken = uint64_t{128} << 10;
  // Looks that are further apart say nothing about the time between them.
  static constexpr absl::Duration kMostBetweenLooks = absl::Seconds(1);

  explicit ConnectionTable(const Clock* clock);  // borrowed

  // Counts the connection of `fd` until it is shut down or reset. False: there is no descriptor left for it.
  bool Add(int fd);
  // Lets go of those that are over; `changed_fd` is readable when there are any.
  void Reap();
  int changed_fd() const { return changed_.get(); }
  uint64_t open() const;

  // Looks at the connections from `peer`, in gRPC's words, and ends those that are stuck. Returns how many. All peers
  // on Unix sockets have the same name; but one that reads what it is sent has room there at one look or another.
  int EndStuck(const std::string& peer);
  void EndAll();

 private:
  struct Connection {
    OwnedFd fd;
    absl::Duration looked = -absl::InfiniteDuration();  // when last; Clock::Monotonic
    absl::Duration full_since = absl::ZeroDuration();   // since that look or one before it
    uint64_t taken = 0;                                 // by its peer, since then
    uint64_t mark = 0;                                  // at the last look: what `taken` is told by (Taken)
  };
  using ByPeer = std::multimap<std::string, Connection>;

  // Bytes since it was called last.
  static uint64_t Taken(Connection& connection);

  const Clock& clock_;
  const OwnedFd changed_;  // an epoll
  mutable std::mutex mu_;
  // Both guarded by mu_.
  ByPeer connections_;
  std::unordered_map<int, ByPeer::iterator> by_fd_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TRANSPORT_CONNECTIONS_H_
