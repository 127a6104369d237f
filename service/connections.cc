#include "service/connections.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sparseagg::service {
namespace {

constexpr char kUnixPeer[] = "unix:";

// As gRPC calls it: "ipv4:127.0.0.1:1234", "ipv6:%5B::1%5D:1234". Clients on Unix sockets have no names.
std::string PeerName(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.ss_family == AF_UNIX) return kUnixPeer;
  // IPv4 through a socket of both families is IPv4.
  if (const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&peer);
      peer.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = v6->sin6_port;
    std::copy_n(v6->sin6_addr.s6_addr + 12, 4, reinterpret_cast<uint8_t*>(&v4.sin_addr));
    size = sizeof(v4);
    std::memcpy(&peer, &v4, size);
  }
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&peer), size, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  return peer.ss_family == AF_INET6 ? absl::StrCat("ipv6:%5B", host.data(), "%5D:", port.data())
                                    : absl::StrCat("ipv4:", host.data(), ":", port.data());
}

bool HasRoom(int fd) {
  pollfd polled{fd, POLLOUT, 0};
  return poll(&polled, 1, 0) != 0;  // or it is over
}

}  // namespace

Connections::Connections(const Clock* clock) : clock_(*clock), changed_(epoll_create1(EPOLL_CLOEXEC)) {}

bool Connections::Add(int fd) {
  OwnedFd second(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (second.get() < 0) return false;
  const int key = second.get();
  // Nothing but that it is over; only once, so that an error which gRPC does not see at once keeps nobody busy.
  epoll_event over{EPOLLET, {}};
  over.data.fd = key;
  std::lock_guard lock(mu_);
  if (epoll_ctl(changed_.get(), EPOLL_CTL_ADD, key, &over) != 0) return false;
  by_fd_[key] = connections_.emplace(PeerName(fd), Connection{std::move(second)});
  return true;
}

void Connections::Reap() {
  std::lock_guard lock(mu_);
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = epoll_wait(changed_.get(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) {
      if ((events[i].events & EPOLLHUP) == 0) continue;
      const auto found = by_fd_.find(events[i].data.fd);
      if (found == by_fd_.end()) continue;
      // By hand: closing does not do it while gRPC's descriptor is still open.
      epoll_ctl(changed_.get(), EPOLL_CTL_DEL, found->first, nullptr);
      connections_.erase(found->second);
      by_fd_.erase(found);
    }
    if (count < static_cast<int>(events.size())) return;
  }
}

uint64_t Connections::open() const {
  std::lock_guard lock(mu_);
  return connections_.size();
}

int Connections::EndStuck(const std::string& peer) {
  const absl::Duration now = clock_.Monotonic();
  int ended = 0;
  std::lock_guard lock(mu_);
  const auto [begin, end] = connections_.equal_range(absl::StartsWith(peer, "unix") ? kUnixPeer : peer);
  for (auto it = begin; it != end; ++it) {
    Connection& connection = it->second;
    const bool looked_lately = now - std::exchange(connection.looked, now) <= kMostBetweenLooks;
    if (HasRoom(connection.fd.get()) || !looked_lately) {
      connection.full_since = now;
    } else if (now - connection.full_since >= kStuck) {
      shutdown(connection.fd.get(), SHUT_RDWR);
      ++ended;
    }
  }
  return ended;
}

void Connections::EndAll() {
  std::lock_guard lock(mu_);
  for (const auto& [peer, connection] : connections_) shutdown(connection.fd.get(), SHUT_RDWR);
}

}  // namespace sparseagg::service
