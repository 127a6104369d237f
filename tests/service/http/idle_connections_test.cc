// Which HTTP connections give way to new ones.
#include "service/http/idle_connections.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>

#include "absl/time/time.h"
#include "service/base/clock.h"
#include "service/transport/owned_fd.h"

namespace sparseagg::service {
namespace {

class SetClock final : public Clock {
 public:
  absl::Duration Monotonic() const override { return now; }
  absl::Time WallTime() const override { return absl::UnixEpoch() + now; }

  absl::Duration now = absl::ZeroDuration();
};

// A connection and its client's end.
class Connection {
 public:
  explicit Connection(IdleConnections* idle) : Connection(idle, MakePair()) {}

  IdleConnections::Place& place() { return place_; }
  bool IsEnded() const {
    pollfd polled{client_.get(), POLLRDHUP, 0};
    return poll(&polled, 1, 0) == 1;
  }

 private:
  static std::array<int, 2> MakePair() {
    std::array<int, 2> fds{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
    return fds;
  }
  Connection(IdleConnections* idle, std::array<int, 2> fds) : server_(fds[0]), client_(fds[1]), place_(idle, fds[0]) {}

  OwnedFd server_;
  OwnedFd client_;
  IdleConnections::Place place_;
};

class IdleConnectionsTest : public ::testing::Test {
 protected:
  SetClock clock_;
  IdleConnections idle_{&clock_};
  Connection first_{&idle_};
  Connection second_{&idle_};
};

TEST_F(IdleConnectionsTest, NoneIdle_NoneIsEnded) {
  EXPECT_FALSE(idle_.EndIdlest());
  first_.place().Enter(Idleness::kUnused);
  first_.place().Leave();
  EXPECT_FALSE(idle_.EndIdlest());
  EXPECT_FALSE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Unused_TheOldestIsEndedAtOnce) {
  second_.place().Enter(Idleness::kUnused);
  first_.place().Enter(Idleness::kUnused);
  second_.place().Enter(Idleness::kUnused);  // has its place already
  ASSERT_TRUE(idle_.EndIdlest());
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(first_.IsEnded());
  ASSERT_TRUE(idle_.EndIdlest());
  EXPECT_TRUE(first_.IsEnded());
  EXPECT_FALSE(idle_.EndIdlest());
  first_.place().Leave();  // no effect
}

TEST_F(IdleConnectionsTest, Used_IsEndedAfterUnusedOnesAndSomeTime) {
  first_.place().Enter(Idleness::kUsed);
  clock_.now = IdleConnections::kMinIdle / 2;
  second_.place().Enter(Idleness::kUnused);
  ASSERT_TRUE(idle_.EndIdlest());
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(idle_.EndIdlest());
  clock_.now = IdleConnections::kMinIdle;
  ASSERT_TRUE(idle_.EndIdlest());
  EXPECT_TRUE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Used_TheOneIdleLongestIsEnded) {
  first_.place().Enter(Idleness::kUsed);
  second_.place().Enter(Idleness::kUsed);
  first_.place().Leave();  // a request
  first_.place().Enter(Idleness::kUsed);
  clock_.now = 2 * IdleConnections::kMinIdle;
  ASSERT_TRUE(idle_.EndIdlest());
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Exchange_GivesWayLast) {
  first_.place().Enter(Idleness::kExchange);
  second_.place().Enter(Idleness::kUsed);
  clock_.now = IdleConnections::kMinIdle;
  ASSERT_TRUE(idle_.EndIdlest());
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(first_.IsEnded());
  ASSERT_TRUE(idle_.EndIdlest());
  EXPECT_TRUE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Exchange_GivesWayIfUsedOnesAreYoung) {
  first_.place().Enter(Idleness::kExchange);
  clock_.now = IdleConnections::kMinIdle;
  second_.place().Enter(Idleness::kUsed);
  ASSERT_TRUE(idle_.EndIdlest());
  EXPECT_TRUE(first_.IsEnded());
  EXPECT_FALSE(second_.IsEnded());
}

}  // namespace
}  // namespace sparseagg::service
