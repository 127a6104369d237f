// The table of open connections, which counts them and can end them.
#ifndef SPARSEAGG_SERVICE_NET_CONNECTION_TABLE_H_
#define SPARSEAGG_SERVICE_NET_CONNECTION_TABLE_H_

#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "service/base/clock.h"
#include "service/net/address.h"
#include "service/net/frame_inspection.h"

namespace sparseagg::service {

// Returns: the peer in the form of grpc::ServerContext::peer(): "ipv4:127.0.0.1:1234", "ipv6:%5B::1%5D:1234". All
// clients on Unix sockets are "unix:".
std::string PeerName(const sockaddr_storage& peer);

// Returns: the host in a peer's name: the name without the port, "ipv4:127.0.0.1". All Unix sockets have one host.
std::string HostOfPeer(const std::string& peer);

// What a connection waits for. The first ones give way first.
enum class Idleness {
  kUnused,    // its first request, or, after the response that ends it, its end
  kUsed,      // another request
  kExchange,  // the rest of a request, the event of a long poll, or that its peer reads a response
};

// Whether to end a connection to admit a newcomer when the table is full: its host has `held` connections, the
// newcomer's host `own`. Any connection ends if the newcomer's host would still have no more than its host; between
// equal hosts only an idle connection ends.
inline bool GivesWay(uint64_t held, uint64_t own, bool is_idle) { return held > own + 1 || (held >= own && is_idle); }

// A second descriptor of each open connection, in addition to gRPC's own. The listener adds connections and removes
// closed ones; calls and the server end connections. Ending means shutdown(), which both descriptors see.
//
// Workaround: gRPC 1.51 neither lists its connections nor ends one. A cancelled call lasts until the peer has read all
// that gRPC has written to the connection, which a peer that reads nothing delays for ever. Remove with: a version that
// can end the connection of a call.
//
// Owned by ServerContext. Thread-safe.
class ConnectionTable {
 public:
  // A connection is stuck if its send buffer was full at every check for kStuckAfter, and its peer read less than
  // kMinReadBytes in that time. The bytes count because the system reports room only when much of the buffer, which can
  // be megabytes, is free: the buffer of a slow peer that reads all the time may look full.
  static constexpr absl::Duration kStuckAfter = absl::Seconds(2);
  static constexpr uint64_t kMinReadBytes = uint64_t{128} << 10;
  // Checks that are further apart say nothing about the time between them: the observation starts again.
  static constexpr absl::Duration kMaxCheckGap = absl::Seconds(1);

  static constexpr absl::Duration kIdle = absl::Seconds(1);
  // A host is barred for kBarTime after one of its connections was ended for what it sent. While it is barred, it gets
  // one connection per kBarInterval: too few for the budgets of FrameLimiter, which are full at the start of each
  // connection, to add up. Other clients of the host, behind the same NAT, connect within a second of the attack's end.
  static constexpr absl::Duration kBarTime = absl::Seconds(5);
  static constexpr absl::Duration kBarInterval = absl::Seconds(1);

  // `clock`: borrowed. `min_idle`: a connection that has waited for this long is idle.
  explicit ConnectionTable(const Clock* clock, absl::Duration min_idle = kIdle);
  ~ConnectionTable();  // ends the inspection of the connections that are left
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  // Adds the connection of `fd`, which stays the caller's, and begins to inspect its frames. `peer`: as PeerName
  // returns it while the connection is there; the system does not tell it once the peer has reset it. tls: as
  // InspectFrames, nullopt: the connection does not carry gRPC, and is not inspected. Returns: false if the process has
  // no descriptor left.
  bool Add(int fd, const std::string& peer, std::optional<bool> tls);
  // Says what a connection that is not inspected waits for; nullopt: the server works for it, and it does not give way.
  // No effect if it waits for the same already, or is gone.
  void SetIdleness(const std::string& peer, std::optional<Idleness> idleness);
  // Ends a connection that waits, to make room for one from `host`: of a host that holds most, the one of the first
  // Idleness that has waited longest. It is idle if it has waited for min_idle, or is kUnused and inspected, or kUnused
  // while `host` has no connection. Inspected connections always wait, kUsed from their first call on: for as long as
  // they have received nothing but pings. Calls, which may be long polls, end with their connection. Returns: false if
  // none GivesWay.
  bool EndIdlest(const std::string& host);
  // Ends the connection with the most streams (SocketActivity) and all others from its host, and bars that. On a Unix
  // socket, only that connection. If even that has less than kBusyStreams: the busiest connection of the host that has
  // the most streams in all.
  void EndBusiest();
  // Bars the host of an inspected connection, also of one that was reset. No effect on Unix sockets.
  void Bar(int fd);
  // Asks for a connection of `host`. Returns: false if the host is barred and has had its connection of this
  // kBarInterval.
  bool PassesBar(const std::string& host);
  // Removes connections that were shut down or reset.
  void RemoveClosed();
  // Readable when RemoveClosed has something to remove.
  int closed_fd() const { return closed_.get(); }
  uint64_t num_open() const;
  // Returns: the number of open connections from a host.
  uint64_t NumFrom(const std::string& host) const;
  // Whether a connection of `peer`, a name as PeerName returns, is in the table.
  bool Has(const std::string& peer) const;

  // Checks the connections of `peer`, a name as PeerName returns, and ends those that are stuck. Call it at least every
  // kMaxCheckGap. All peers on Unix sockets share a name, but a peer that reads has room at one check or another.
  // Returns: the number of connections ended.
  int EndStuck(const std::string& peer);
  // Ends connections that had no open stream at all calls for `time`. For a server that has told its clients to go
  // (GOAWAY): an honest client closes the connection by itself.
  void EndWithoutStreams(absl::Duration time);
  void EndAll();

 private:
  using ByHost = std::unordered_map<std::string, uint64_t>;
  struct Connection {
    OwnedFd fd;
    ByHost::value_type* host;                            // counts it
    InspectedSocket socket;                              // gRPC's
    absl::Duration checked = -absl::InfiniteDuration();  // last check; Clock::Monotonic
    absl::Duration full_since = absl::ZeroDuration();    // Clock::Monotonic
    // Since when EndWithoutStreams has seen no stream; SystemClock.
    absl::Duration without_streams = absl::InfiniteDuration();
    uint64_t read_bytes = 0;                           // by the peer, since full_since
    uint64_t counter = 0;                              // the system's counter at the last check (BytesRead)
    std::optional<Idleness> idleness = std::nullopt;   // of SetIdleness
    absl::Duration idle_since = absl::ZeroDuration();  // Clock::Monotonic
  };
  using ByPeer = std::multimap<std::string, Connection>;

  void BarPeer(const std::string& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(ByPeer::iterator connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(ByPeer::iterator connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns: the bytes that the peer has read since the last call. For a Unix socket, which reports only unread bytes:
  // the decrease, or kMinReadBytes if unread bytes have increased, because there must have been room for them.
  static uint64_t BytesRead(Connection& connection);

  // Of a barred host; Clock::Monotonic.
  struct BarTimes {
    absl::Duration next;  // when it may connect again
    absl::Duration end;
  };

  static constexpr size_t kMaxBarred = 1024;
  static constexpr size_t kBusyStreams = 200;

  const Clock& clock_;
  const absl::Duration min_idle_;
  const OwnedFd closed_;  // an epoll of all connections
  mutable Mutex mu_;
  ByPeer connections_ ABSL_GUARDED_BY(mu_);
  ByHost by_host_ ABSL_GUARDED_BY(mu_);  // number of connections
  std::unordered_map<int, ByPeer::iterator> by_fd_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<std::string, BarTimes> barred_ ABSL_GUARDED_BY(mu_);  // by host
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_NET_CONNECTION_TABLE_H_
