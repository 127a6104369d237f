#include "service/connections.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

#include "tests/service/manual_clock.h"

namespace sparseagg::service {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Milliseconds(200);

class ConnectionsTest : public ::testing::Test {
 protected:
  struct Pair {
    OwnedFd server;
    OwnedFd client;
  };

  Pair Connect() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    EXPECT_TRUE(connections_.Add(ends[0]));
    return {OwnedFd(ends[0]), OwnedFd(ends[1])};
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

  int LookFor(absl::Duration time, absl::Duration between = kBetweenLooks) {
    int ended = connections_.EndStuck("unix:");
    for (absl::Duration passed = between; passed <= time; passed += between) {
      clock_.Advance(between, timer_);
      ended += connections_.EndStuck("unix:");
    }
    return ended;
  }

  ManualClock clock_;
  Timer timer_{&clock_};
  Connections connections_{&clock_};
};

TEST_F(ConnectionsTest, Open_CountsUntilOneSideEndsIt) {
  Pair first = Connect();
  Pair second = Connect();
  Pair third = Connect();
  connections_.Reap();
  EXPECT_EQ(connections_.open(), 3);
  shutdown(first.server.get(), SHUT_RDWR);
  second.client.Reset();
  connections_.Reap();
  EXPECT_EQ(connections_.open(), 1);
}

TEST_F(ConnectionsTest, EndStuck_TakesNothing_IsEndedInTime) {
  const Pair stuck = Connect();
  const Pair other = Connect();
  Fill(stuck);
  EXPECT_EQ(LookFor(Connections::kStuck - kBetweenLooks), 0);
  EXPECT_FALSE(HasEnded(stuck));
  clock_.Advance(kBetweenLooks, timer_);
  EXPECT_EQ(connections_.EndStuck("unix:"), 1);
  EXPECT_TRUE(HasEnded(stuck));
  EXPECT_FALSE(HasEnded(other));
  EXPECT_EQ(connections_.EndStuck("unix:"), 0);
}

TEST_F(ConnectionsTest, EndStuck_IsFullButMoves_Stays) {
  const Pair busy = Connect();
  for (int i = 0; i < 5; ++i) {
    Fill(busy);
    EXPECT_EQ(LookFor(Connections::kStuck - kBetweenLooks), 0);
    Drain(busy);
    EXPECT_EQ(LookFor(kBetweenLooks), 0);
  }
  EXPECT_FALSE(HasEnded(busy));
}

TEST_F(ConnectionsTest, EndStuck_LooksFarApart_SayNothing) {
  const Pair full = Connect();
  Fill(full);
  EXPECT_EQ(LookFor(5 * Connections::kStuck, 2 * Connections::kMostBetweenLooks), 0);
  EXPECT_EQ(LookFor(Connections::kStuck), 1);
}

TEST_F(ConnectionsTest, EndStuck_AnotherPeer_Stays) {
  const Pair full = Connect();
  Fill(full);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(connections_.EndStuck("ipv4:127.0.0.1:1"), 0);
    clock_.Advance(kBetweenLooks, timer_);
  }
}

TEST_F(ConnectionsTest, EndAll_EndsAll) {
  const Pair first = Connect();
  const Pair second = Connect();
  connections_.EndAll();
  EXPECT_TRUE(HasEnded(first));
  EXPECT_TRUE(HasEnded(second));
}

}  // namespace
}  // namespace sparseagg::service
