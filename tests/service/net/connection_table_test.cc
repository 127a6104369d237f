#include "service/net/connection_table.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "service/net/address.h"
#include "tests/service/support/manual_clock.h"
#include "tests/service/support/tcp_pair.h"

namespace sparseagg::service {
namespace {

constexpr absl::Duration kCheckInterval = absl::Milliseconds(200);

class ConnectionTableTest : public ::testing::Test {
 protected:
  struct Pair {
    OwnedFd server;
    OwnedFd client;
  };

  Pair Connect() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    EXPECT_TRUE(connections_.Add(ends[0], peer_, /*tls=*/false));
    return {OwnedFd(ends[0]), OwnedFd(ends[1])};
  }

  // The send buffer is as large as the system allows: the peer must read much until there is room again.
  Pair ConnectWithLargeBuffer(int family) {
    Pair pair;
    if (family == AF_UNIX) {
      pair = Connect();
    } else {
      TcpPair tcp("127.0.0.1", static_cast<int>(ConnectionTable::kMinReadBytes) / 4);  // read while it fills
      EXPECT_TRUE(connections_.Add(tcp.server.get(), tcp.peer, /*tls=*/false));
      peer_ = tcp.peer;
      pair = {std::move(tcp.server), std::move(tcp.client)};
    }
    const int much = 4 << 20;
    setsockopt(pair.server.get(), SOL_SOCKET, SO_SNDBUF, &much, sizeof(much));
    return pair;
  }

  static int UnreadBytes(const Pair& pair) {
    int bytes = 0;
    EXPECT_EQ(ioctl(pair.server.get(), SIOCOUTQ, &bytes), 0);
    return bytes;
  }
  static bool HasRoom(const Pair& pair) {
    pollfd polled{pair.server.get(), POLLOUT, 0};
    return poll(&polled, 1, 0) != 0;
  }
  // Reads at least `bytes`, as the system counts them.
  static void ReadSome(const Pair& pair, int bytes) {
    std::array<char, 4096> taken;
    for (const int before = UnreadBytes(pair); UnreadBytes(pair) > before - bytes;) {
      if (recv(pair.client.get(), taken.data(), taken.size(), MSG_DONTWAIT) <= 0) std::this_thread::yield();
    }
  }

  static void Fill(const Pair& pair) {
    const std::string bytes(4096, 'x');
    while (send(pair.server.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) {
    }
  }
  static void Drain(const Pair& pair) {
    std::array<char, 1 << 16> bytes;
    while (recv(pair.client.get(), bytes.data(), bytes.size(), 0) > 0) {
    }
  }
  static bool HasEnded(const Pair& pair) { return send(pair.client.get(), "x", 1, MSG_NOSIGNAL) < 0; }

  int CheckFor(absl::Duration time, absl::Duration between = kCheckInterval) {
    int ended = connections_.EndStuck(peer_);
    for (absl::Duration passed = between; passed <= time; passed += between) {
      clock_.Advance(between, timer_);
      ended += connections_.EndStuck(peer_);
    }
    return ended;
  }

  ManualClock clock_;
  Timer timer_{&clock_};
  ConnectionTable connections_{&clock_};
  std::string peer_ = "unix:";
};

TEST_F(ConnectionTableTest, TableThatIsGone_LeavesNothingForTheNextSocketOfThatNumber) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const OwnedFd server(ends[0]);
  const OwnedFd client(ends[1]);
  InspectedSocket socket{server.get(), 0};
  socklen_t size = sizeof(socket.cookie);
  ASSERT_EQ(getsockopt(server.get(), SOL_SOCKET, SO_COOKIE, &socket.cookie, &size), 0);
  {
    ConnectionTable table(&clock_);
    ASSERT_TRUE(table.Add(server.get(), "unix:", /*tls=*/false));
  }
  EXPECT_FALSE(EndInspection(socket)) << "it went on";
}

// Connections of several hosts, as gRPC's.
class HostsConnectionTableTest : public ConnectionTableTest {
 protected:
  std::vector<TcpPair> ConnectFrom(const char* host, int count) {
    std::vector<TcpPair> pairs;
    for (int i = 0; i < count; ++i) {
      pairs.emplace_back(host);
      EXPECT_TRUE(connections_.Add(pairs.back().server.get(), pairs.back().peer, /*tls=*/false));
    }
    return pairs;
  }

  // The client opens `streams` streams, and the server receives that as gRPC does.
  static void Call(const TcpPair& pair, uint8_t streams) {
    std::string sent = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (uint8_t i = 0; i < streams; ++i) {
      const uint32_t stream = 2 * uint32_t{i} + 1;
      sent += {0, 0, 0, 1, 4, 0, 0, static_cast<char>(stream >> 8), static_cast<char>(stream)};
    }
    sent.append({0, 0, 64, 0, 0, 0, 0, 0, 1}).append(64, 'x');
    Exchange(pair, sent);
    Exchange(pair, std::string({0, 0, 120, 0, 0, 0, 0, 0, 1}) + std::string(120, 'x'));
  }

  // The server ends a stream, as gRPC does.
  static void EndStream(const TcpPair& pair, uint8_t stream) {
    std::array<char, 9> frame = {0, 0, 0, 1, 5, 0, 0, 0, static_cast<char>(stream)};
    iovec part{frame.data(), frame.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    ASSERT_EQ(sendmsg(pair.server.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
  }
  // Whether the client reads to an end.
  static bool HasEnded(const TcpPair& pair) {
    std::array<char, 64> bytes;
    ssize_t size = 0;
    do {
      size = recv(pair.client.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    } while (size > 0);
    return size == 0;
  }

  static int NumEnded(const std::vector<TcpPair>& pairs) {
    return static_cast<int>(std::count_if(pairs.begin(), pairs.end(), [](const auto& pair) { return pair.IsEnded(); }));
  }

 private:
  static void Exchange(const TcpPair& pair, const std::string& sent) {
    ASSERT_EQ(send(pair.client.get(), sent.data(), sent.size(), MSG_NOSIGNAL), static_cast<ssize_t>(sent.size()));
    std::array<char, 4096> bytes;
    for (size_t received = 0; received < sent.size();) {
      iovec part{bytes.data(), bytes.size()};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      pollfd polled{pair.server.get(), POLLIN, 0};
      ASSERT_EQ(poll(&polled, 1, 20'000), 1);
      const ssize_t size = recvmsg(pair.server.get(), &message, 0);
      ASSERT_GT(size, 0);
      received += static_cast<size_t>(size);
    }
  }
};

class SlowConnectionTableTest : public ConnectionTableTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Families, SlowConnectionTableTest, ::testing::Values(AF_UNIX, AF_INET),
                         [](const auto& param) { return param.param == AF_UNIX ? "Unix" : "Tcp"; });

TEST_F(ConnectionTableTest, NumOpen_CountsUntilEitherSideCloses) {
  Pair first = Connect();
  Pair second = Connect();
  Pair third = Connect();
  connections_.RemoveClosed();
  EXPECT_EQ(connections_.num_open(), 3);
  shutdown(first.server.get(), SHUT_RDWR);
  second.client.Reset();
  connections_.RemoveClosed();
  EXPECT_EQ(connections_.num_open(), 1);
}

TEST_F(ConnectionTableTest, EndStuck_ReadsNothing_IsEndedInTime) {
  const Pair stuck = Connect();
  const Pair other = Connect();
  Fill(stuck);
  EXPECT_EQ(CheckFor(ConnectionTable::kStuckAfter - kCheckInterval), 0);
  EXPECT_FALSE(HasEnded(stuck));
  clock_.Advance(kCheckInterval, timer_);
  EXPECT_EQ(connections_.EndStuck("unix:"), 1);
  EXPECT_TRUE(HasEnded(stuck));
  EXPECT_FALSE(HasEnded(other));
  EXPECT_EQ(connections_.EndStuck("unix:"), 0);
}

TEST_F(ConnectionTableTest, EndStuck_IsFullButMoves_Stays) {
  const Pair busy = Connect();
  for (int i = 0; i < 5; ++i) {
    Fill(busy);
    EXPECT_EQ(CheckFor(ConnectionTable::kStuckAfter - kCheckInterval), 0);
    Drain(busy);
    EXPECT_EQ(CheckFor(kCheckInterval), 0);
  }
  EXPECT_FALSE(HasEnded(busy));
}

// The buffer is full at every check, but the peer reads all the time.
TEST_P(SlowConnectionTableTest, EndStuck_ReadsLittleByLittle_Stays) {
  const Pair slow = ConnectWithLargeBuffer(GetParam());
  Fill(slow);
  const int checks = static_cast<int>(ConnectionTable::kStuckAfter / kCheckInterval);
  const int each = static_cast<int>(ConnectionTable::kMinReadBytes) / checks + 1;
  for (int i = 0; i < 3 * checks; ++i) {
    EXPECT_EQ(connections_.EndStuck(peer_), 0) << i;
    clock_.Advance(kCheckInterval, timer_);
    ReadSome(slow, each);
    if (HasRoom(slow)) Fill(slow);  // as gRPC does
  }
  EXPECT_FALSE(HasEnded(slow));
}

TEST_P(SlowConnectionTableTest, EndStuck_ReadsNextToNothing_IsEndedInTime) {
  const Pair slow = ConnectWithLargeBuffer(GetParam());
  Fill(slow);
  EXPECT_EQ(CheckFor(ConnectionTable::kStuckAfter / 2), 0);
  std::array<char, 4096> taken;
  EXPECT_GT(recv(slow.client.get(), taken.data(), taken.size(), 0), 0);
  EXPECT_EQ(CheckFor(ConnectionTable::kStuckAfter / 2), 1);
}

TEST_F(ConnectionTableTest, EndStuck_ChecksFarApart_EndNothing) {
  const Pair full = Connect();
  Fill(full);
  EXPECT_EQ(CheckFor(5 * ConnectionTable::kStuckAfter, 2 * ConnectionTable::kMaxCheckGap), 0);
  EXPECT_EQ(CheckFor(ConnectionTable::kStuckAfter), 1);
}

TEST_F(ConnectionTableTest, EndStuck_AnotherPeer_Stays) {
  const Pair full = Connect();
  Fill(full);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(connections_.EndStuck("ipv4:127.0.0.1:1"), 0);
    clock_.Advance(kCheckInterval, timer_);
  }
}

// Its connections have called a moment ago.
TEST_F(HostsConnectionTableTest, EndIdlest_BusyConnectionsOfAGreedyHost_GiveWayToOthersOnly) {
  const auto greedy = ConnectFrom("127.0.0.2", 3);
  for (const TcpPair& pair : greedy) Call(pair, 1);
  EXPECT_FALSE(connections_.EndIdlest("ipv4:127.0.0.2"));
  EXPECT_TRUE(connections_.EndIdlest("ipv4:127.0.0.1"));
  EXPECT_TRUE(greedy[0].IsEnded());
  const auto honest = ConnectFrom("127.0.0.1", 1);
  for (const TcpPair& pair : honest) Call(pair, 1);
  EXPECT_FALSE(connections_.EndIdlest("ipv4:127.0.0.1"));  // it would hold as much as the other does now
  EXPECT_FALSE(connections_.EndIdlest("ipv4:127.0.0.2"));
  EXPECT_EQ(NumEnded(honest), 0);
}

TEST_F(HostsConnectionTableTest, EndBusiest_ManyStreamsOnOneConnection_EndsAndBarsTheHost) {
  const auto honest = ConnectFrom("127.0.0.1", 2);
  const auto greedy = ConnectFrom("127.0.0.2", 2);
  for (const TcpPair& pair : honest) Call(pair, 150);
  Call(greedy[1], 250);
  connections_.EndBusiest();
  EXPECT_EQ(NumEnded(greedy), 2);
  EXPECT_EQ(NumEnded(honest), 0);
  EXPECT_FALSE(connections_.PassesBar("ipv4:127.0.0.2"));
}

TEST_F(HostsConnectionTableTest, EndBusiest_ManyStreamsOnManyConnections_EndsTheBusiestOfTheHost) {
  const auto honest = ConnectFrom("127.0.0.1", 1);
  const auto greedy = ConnectFrom("127.0.0.2", 3);
  Call(honest[0], 80);  // streams count twice in the second in which they were opened
  Call(greedy[0], 40);
  Call(greedy[1], 50);
  Call(greedy[2], 45);
  connections_.EndBusiest();
  EXPECT_TRUE(greedy[1].IsEnded());
  EXPECT_EQ(NumEnded(greedy), 1);
  EXPECT_EQ(NumEnded(honest), 0);
  EXPECT_TRUE(connections_.PassesBar("ipv4:127.0.0.2"));
}

TEST_F(HostsConnectionTableTest, BarredHost_GetsOneConnectionAnInterval) {
  const std::string host = "ipv4:127.0.0.2";
  const auto attackers = ConnectFrom("127.0.0.2", 2);
  connections_.Bar(attackers[0].server.get());
  EXPECT_FALSE(connections_.PassesBar(host));
  EXPECT_TRUE(connections_.PassesBar("ipv4:127.0.0.1"));
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(ConnectionTable::kBarInterval, timer_);
    EXPECT_TRUE(connections_.PassesBar(host)) << i;
    EXPECT_FALSE(connections_.PassesBar(host)) << i;
  }
  // The attack goes on until now: the bar lasts, but a neighbour waits no longer than an interval.
  clock_.Advance(ConnectionTable::kBarTime, timer_);
  connections_.Bar(attackers[1].server.get());
  EXPECT_FALSE(connections_.PassesBar(host));
  clock_.Advance(ConnectionTable::kBarInterval, timer_);
  EXPECT_TRUE(connections_.PassesBar(host));
  clock_.Advance(ConnectionTable::kBarTime, timer_);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(connections_.PassesBar(host)) << i;
}

TEST_F(HostsConnectionTableTest, Bar_ConnectionThatWasReset_BarsItsHost) {
  auto attackers = ConnectFrom("127.0.0.2", 1);
  const linger at_once{1, 0};
  EXPECT_EQ(setsockopt(attackers[0].client.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  attackers[0].client.Reset();
  pollfd reset{attackers[0].server.get(), 0, 0};
  ASSERT_EQ(poll(&reset, 1, -1), 1);
  connections_.Bar(attackers[0].server.get());
  EXPECT_FALSE(connections_.PassesBar("ipv4:127.0.0.2"));
}

TEST_F(HostsConnectionTableTest, Bar_DescriptorThatWasAnotherConnection_BarsTheHostThatHasIt) {
  auto before = ConnectFrom("127.0.0.1", 1);
  const int number = before[0].server.get();
  before[0].server.Reset();  // the table keeps the connection: its peer has not ended it
  const TcpPair now("127.0.0.2");
  ASSERT_EQ(dup2(now.server.get(), number), number);
  const OwnedFd same(number);
  ASSERT_TRUE(connections_.Add(number, now.peer, /*tls=*/false));
  connections_.Bar(number);
  EXPECT_FALSE(connections_.PassesBar("ipv4:127.0.0.2"));
  EXPECT_TRUE(connections_.PassesBar("ipv4:127.0.0.1"));
}

TEST_F(HostsConnectionTableTest, EndWithoutStreams_EndsThoseWhoseStreamsHaveEnded) {
  const auto pairs = ConnectFrom("127.0.0.1", 3);
  Call(pairs[1], 1);
  Call(pairs[2], 2);
  connections_.EndWithoutStreams(absl::Hours(1));
  EXPECT_EQ(NumEnded(pairs), 0);
  connections_.EndWithoutStreams(absl::ZeroDuration());
  EXPECT_TRUE(pairs[0].IsEnded());  // it has sent nothing
  EXPECT_EQ(NumEnded(pairs), 1);
  EndStream(pairs[1], 1);
  EndStream(pairs[2], 1);
  connections_.EndWithoutStreams(absl::ZeroDuration());
  EXPECT_TRUE(HasEnded(pairs[1]));
  EXPECT_FALSE(HasEnded(pairs[2]));
}

// The names of grpc::ServerContext::peer().
TEST(PeerNameTest, OfEveryFamily) {
  const auto v6 = [](const char* address, uint32_t scope) {
    sockaddr_storage peer{};
    auto& in6 = reinterpret_cast<sockaddr_in6&>(peer);
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(1234);
    in6.sin6_scope_id = scope;
    EXPECT_EQ(inet_pton(AF_INET6, address, &in6.sin6_addr), 1);
    return PeerName(peer);
  };
  EXPECT_EQ(v6("::1", 0), "ipv6:%5B::1%5D:1234");
  EXPECT_EQ(v6("fe80::1", 2), "ipv6:%5Bfe80::1%252%5D:1234");
  EXPECT_EQ(v6("::ffff:10.1.2.3", 0), "ipv4:10.1.2.3:1234");
  sockaddr_storage peer{};
  auto& in = reinterpret_cast<sockaddr_in&>(peer);
  in.sin_family = AF_INET;
  in.sin_port = htons(1234);
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(PeerName(peer), "ipv4:127.0.0.1:1234");
  peer.ss_family = AF_UNIX;
  EXPECT_EQ(PeerName(peer), "unix:");
}

}  // namespace
}  // namespace sparseagg::service
