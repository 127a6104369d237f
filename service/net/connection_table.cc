#include "service/net/connection_table.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sparseagg::service {
namespace {

constexpr char kUnixPeer[] = "unix:";

// Returns: true also for a connection that is closed.
bool HasRoom(int fd) {
  pollfd polled{fd, POLLOUT, 0};
  return poll(&polled, 1, 0) != 0;
}

}  // namespace

std::string PeerName(const sockaddr_storage& peer) {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (peer.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer);
    inet_ntop(AF_INET, &v4.sin_addr, host.data(), host.size());
    return absl::StrCat("ipv4:", host.data(), ":", ntohs(v4.sin_port));
  }
  if (peer.ss_family != AF_INET6) return kUnixPeer;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(peer);
  // An IPv4 peer of a socket for both families has a mapped address.
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, host.data(), host.size());
    return absl::StrCat("ipv4:", host.data(), ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, host.data(), host.size());
  // The interface of a link-local address. "%25" is an escaped "%", as "%5B" is an escaped bracket.
  const std::string scope = v6.sin6_scope_id == 0 ? "" : absl::StrCat("%25", v6.sin6_scope_id);
  return absl::StrCat("ipv6:%5B", host.data(), scope, "%5D:", ntohs(v6.sin6_port));
}

std::string HostOfPeer(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

ConnectionTable::ConnectionTable(const Clock* clock, absl::Duration min_idle)
    : clock_(*clock), min_idle_(min_idle), closed_(epoll_create1(EPOLL_CLOEXEC)) {}

ConnectionTable::~ConnectionTable() {
  // What is known of a descriptor is kept by its number, which a connection of the next server may get.
  for (const auto& [peer, connection] : connections_) {
    if (connection.socket.fd >= 0) EndInspection(connection.socket);
  }
}

bool ConnectionTable::Add(int fd, const std::string& peer, std::optional<bool> tls) {
  OwnedFd second(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (second.get() < 0) return false;
  const int key = second.get();
  // No events but the implicit EPOLLHUP and EPOLLERR. Edge-triggered, so that an error that gRPC does not handle at
  // once does not wake the listener again and again.
  epoll_event closed{EPOLLET, {}};
  closed.data.fd = key;
  MutexLock lock(&mu_);
  if (epoll_ctl(closed_.get(), EPOLL_CTL_ADD, key, &closed) != 0) return false;
  const InspectedSocket socket = tls.has_value() ? InspectFrames(fd, *tls) : InspectedSocket();
  if (tls.has_value() && socket.fd < 0)
    return false;  // closing `second` removes it from the epoll: gRPC does not have the socket
  auto& host = *by_host_.try_emplace(HostOfPeer(peer), 0).first;
  ++host.second;
  by_fd_[key] = connections_.emplace(peer, Connection{std::move(second), &host, socket});
  return true;
}

void ConnectionTable::Remove(ByPeer::iterator connection) {
  const int fd = connection->second.fd.get();
  // Closing the descriptor would not remove it from the epoll while gRPC's descriptor is open.
  epoll_ctl(closed_.get(), EPOLL_CTL_DEL, fd, nullptr);
  if (connection->second.socket.fd >= 0) EndInspection(connection->second.socket);
  by_fd_.erase(fd);
  if (--connection->second.host->second == 0) by_host_.erase(HostOfPeer(connection->first));
  connections_.erase(connection);
}

void ConnectionTable::End(ByPeer::iterator connection) {
  shutdown(connection->second.fd.get(), SHUT_RDWR);
  Remove(connection);
}

void ConnectionTable::SetIdleness(const std::string& peer, std::optional<Idleness> idleness) {
  const absl::Duration now = clock_.Monotonic();
  MutexLock lock(&mu_);
  const auto [begin, end] = connections_.equal_range(peer);
  for (auto it = begin; it != end; ++it) {
    if (std::exchange(it->second.idleness, idleness) != idleness) it->second.idle_since = now;
  }
}

bool ConnectionTable::EndIdlest(const std::string& host) {
  MutexLock lock(&mu_);
  const auto found = by_host_.find(host);
  const uint64_t own = found == by_host_.end() ? 0 : found->second;
  const absl::Duration now = clock_.Monotonic();
  const absl::Duration system_now = SystemClock().Monotonic();
  auto idlest = connections_.end();
  uint64_t most = 0;
  std::pair<Idleness, absl::Duration> least;  // rank of `idlest`: its idleness, then minus the time it has waited
  for (auto it = connections_.begin(); it != connections_.end(); ++it) {
    const uint64_t held = it->second.host->second;
    if (held < std::max(most, own)) continue;
    const Connection& connection = it->second;
    const bool is_inspected = connection.socket.fd >= 0;
    std::pair rank(connection.idleness.value_or(Idleness::kUsed), connection.idle_since - now);
    if (is_inspected) {
      const SocketActivity activity = ActivityOf(connection.socket);
      rank = {activity.has_called ? Idleness::kUsed : Idleness::kUnused, activity.received - system_now};
    } else if (!connection.idleness.has_value()) {
      continue;
    }
    const bool gives_way_at_once = rank.first == Idleness::kUnused && (own == 0 || is_inspected);
    if (!GivesWay(held, own, gives_way_at_once || rank.second <= -min_idle_)) continue;
    if (held == most && rank >= least) continue;
    idlest = it;
    most = held;
    least = rank;
  }
  if (idlest == connections_.end()) return false;
  End(idlest);
  return true;
}

void ConnectionTable::EndBusiest() {
  MutexLock lock(&mu_);
  struct Busy {
    size_t streams = 0;  // of all connections of a host, or of `connection` alone
    size_t most = 0;     // of `connection`
    ByPeer::iterator connection;
  };
  Busy busiest;       // the connection with the most streams, alone
  Busy busiest_host;  // the host with the most streams, and its busiest connection
  Busy of_host;       // the host of the connections at `it`, as far as they were counted
  const ByHost::value_type* host = nullptr;
  // Names begin with the host, so the connections of a host are neighbours.
  for (auto it = connections_.begin(); it != connections_.end(); ++it) {
    if (std::exchange(host, it->second.host) != it->second.host) of_host = Busy();
    const size_t streams = ActivityOf(it->second.socket).streams;
    of_host.streams += streams;
    if (streams > of_host.most) of_host = {of_host.streams, streams, it};
    if (streams > busiest.most) busiest = {streams, streams, it};
    if (of_host.streams > busiest_host.streams) busiest_host = of_host;
  }
  if (busiest.most == 0) return;
  if (busiest.most < kBusyStreams) return End(busiest_host.connection);
  BarPeer(busiest.connection->first);
  if (busiest.connection->first == kUnixPeer) return End(busiest.connection);
  const std::string prefix = HostOfPeer(busiest.connection->first) + ":";
  for (auto it = connections_.lower_bound(prefix); it != connections_.end() && absl::StartsWith(it->first, prefix);) {
    End(it++);
  }
}

void ConnectionTable::Bar(int fd) {
  // Not by `fd`: the table may still have the connection whose number it was before.
  const uint64_t cookie = SocketCookie(fd);
  MutexLock lock(&mu_);
  const auto found = std::find_if(connections_.begin(), connections_.end(), [cookie](const auto& connection) {
    return connection.second.socket.cookie == cookie;
  });
  if (cookie != 0 && found != connections_.end()) BarPeer(found->first);
}

void ConnectionTable::BarPeer(const std::string& peer) {
  if (peer == kUnixPeer) return;
  const absl::Duration now = clock_.Monotonic();
  if (barred_.size() >= kMaxBarred) {
    std::erase_if(barred_, [&](const auto& host) { return host.second.end <= now; });
    if (barred_.size() >= kMaxBarred) return;
  }
  barred_[HostOfPeer(peer)] = {now + kBarInterval, now + kBarTime};
}

bool ConnectionTable::PassesBar(const std::string& host) {
  const absl::Duration now = clock_.Monotonic();
  MutexLock lock(&mu_);
  const auto found = barred_.find(host);
  if (found == barred_.end() || found->second.end <= now) return true;
  if (now < found->second.next) return false;
  found->second.next = now + kBarInterval;
  return true;
}

void ConnectionTable::RemoveClosed() {
  MutexLock lock(&mu_);
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = epoll_wait(closed_.get(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) {
      if ((events[i].events & EPOLLHUP) == 0) continue;
      const auto found = by_fd_.find(events[i].data.fd);
      if (found == by_fd_.end()) continue;
      Remove(found->second);
    }
    if (count < static_cast<int>(events.size())) return;
  }
}

uint64_t ConnectionTable::num_open() const {
  MutexLock lock(&mu_);
  return connections_.size();
}

uint64_t ConnectionTable::NumFrom(const std::string& host) const {
  MutexLock lock(&mu_);
  const auto found = by_host_.find(host);
  return found == by_host_.end() ? 0 : found->second;
}

bool ConnectionTable::Has(const std::string& peer) const {
  MutexLock lock(&mu_);
  return connections_.contains(peer);
}

uint64_t ConnectionTable::BytesRead(Connection& connection) {
  const int fd = connection.fd.get();
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
    if (size < offsetof(tcp_info, tcpi_bytes_acked) + sizeof(info.tcpi_bytes_acked)) return 0;
    return info.tcpi_bytes_acked - std::exchange(connection.counter, info.tcpi_bytes_acked);
  }
  int unread = 0;
  if (ioctl(fd, SIOCOUTQ, &unread) != 0) return 0;
  const uint64_t before = std::exchange(connection.counter, unread);
  return before < connection.counter ? kMinReadBytes : before - connection.counter;
}

int ConnectionTable::EndStuck(const std::string& peer) {
  const absl::Duration now = clock_.Monotonic();
  int ended = 0;
  MutexLock lock(&mu_);
  const auto [begin, end] = connections_.equal_range(absl::StartsWith(peer, "unix") ? kUnixPeer : peer);
  for (auto it = begin; it != end; ++it) {
    Connection& connection = it->second;
    const bool was_checked_lately = now - std::exchange(connection.checked, now) <= kMaxCheckGap;
    connection.read_bytes += BytesRead(connection);
    if (HasRoom(connection.fd.get()) || !was_checked_lately || connection.read_bytes >= kMinReadBytes) {
      connection.full_since = now;
      connection.read_bytes = 0;
    } else if (now - connection.full_since >= kStuckAfter) {
      shutdown(connection.fd.get(), SHUT_RDWR);
      ++ended;
    }
  }
  return ended;
}

void ConnectionTable::EndWithoutStreams(absl::Duration time) {
  const absl::Duration now = SystemClock().Monotonic();
  MutexLock lock(&mu_);
  for (auto& [peer, connection] : connections_) {
    const bool has_streams = ActivityOf(connection.socket).open_streams > 0;
    connection.without_streams = has_streams ? absl::InfiniteDuration() : std::min(connection.without_streams, now);
    if (now - connection.without_streams >= time) shutdown(connection.fd.get(), SHUT_RDWR);
  }
}

void ConnectionTable::EndAll() {
  MutexLock lock(&mu_);
  for (const auto& [peer, connection] : connections_) shutdown(connection.fd.get(), SHUT_RDWR);
}

}  // namespace sparseagg::service
