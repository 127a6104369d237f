// A TCP connection over the loopback, from a host of choice, and whether this machine knows localhost.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_TCP_PAIR_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_TCP_PAIR_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "service/net/address.h"

namespace sparseagg::service {

inline sockaddr_in LoopbackAddress(const char* host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, host, &address.sin_addr), 1);
  return address;
}

// Returns: a socket whose connections come from `host`, one of 127.0.0.0/8.
inline OwnedFd SocketOf(const char* host) {
  OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in from = LoopbackAddress(host, 0);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof(from)), 0);
  return fd;
}

// Both ends of a connection.
struct TcpPair {
  // The client is at `host`. `receive_buffer`: of the client in bytes; 0: as the system has it.
  explicit TcpPair(const char* host = "127.0.0.1", int receive_buffer = 0) : client(SocketOf(host)) {
    const OwnedFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = LoopbackAddress("127.0.0.1", 0);
    socklen_t size = sizeof(address);
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), at, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), at, &size), 0);
    if (receive_buffer > 0) setsockopt(client.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    EXPECT_EQ(connect(client.get(), at, size), 0);
    server.Reset(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    EXPECT_EQ(getsockname(client.get(), at, &size), 0);
    peer = absl::StrCat("ipv4:", host, ":", ntohs(address.sin_port));
  }

  // Whether the server's end was shut down.
  bool IsEnded() const {
    pollfd polled{client.get(), POLLRDHUP, 0};
    return poll(&polled, 1, 0) == 1;
  }

  OwnedFd client;
  OwnedFd server;
  std::string peer;  // PeerName of the client
};

// Returns: false on a machine without /etc/hosts where no name server knows the name either.
inline bool KnowsLocalhost() {
  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_TCP_PAIR_H_
