#include "service/transport/connection_table.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "absl/strings/str_cat.h"
#include "service/transport/owned_fd.h"
#include "tests/service/support/manual_clock.h"

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
    EXPECT_TRUE(connections_.Add(ends[0], /*tls=*/false));
    return {OwnedFd(ends[0]), OwnedFd(ends[1])};
  }

  // The send buffer is as large as the system allows: the peer must read much until there is room again.
  Pair ConnectWithLargeBuffer(int family) {
    Pair pair;
    if (family == AF_UNIX) {
      pair = Connect();
    } else {
      const OwnedFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t size = sizeof(address);
      auto* const at = reinterpret_cast<sockaddr*>(&address);
      EXPECT_EQ(bind(listener.get(), at, size), 0);
      EXPECT_EQ(listen(listener.get(), 1), 0);
      EXPECT_EQ(getsockname(listener.get(), at, &size), 0);
      pair.client.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int little = static_cast<int>(ConnectionTable::kMinReadBytes) / 4;  // read while it fills
      setsockopt(pair.client.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
      EXPECT_EQ(connect(pair.client.get(), at, size), 0);
      pair.server.Reset(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      EXPECT_TRUE(connections_.Add(pair.server.get(), /*tls=*/false));
      EXPECT_EQ(getsockname(pair.client.get(), at, &size), 0);
      peer_ = absl::StrCat("ipv4:127.0.0.1:", ntohs(address.sin_port));
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
    ASSERT_TRUE(table.Add(server.get(), /*tls=*/false));
  }
  EXPECT_FALSE(EndInspection(socket)) << "it went on";
}

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

TEST_F(ConnectionTableTest, EndAll_EndsAll) {
  const Pair first = Connect();
  const Pair second = Connect();
  connections_.EndAll();
  EXPECT_TRUE(HasEnded(first));
  EXPECT_TRUE(HasEnded(second));
}

}  // namespace
}  // namespace sparseagg::service
