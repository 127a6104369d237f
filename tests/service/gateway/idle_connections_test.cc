// Which HTTP connections give way to new ones.
#include "service/gateway/idle_connections.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "service/base/clock.h"
#include "service/net/connection_table.h"
#include "tests/service/support/tcp_pair.h"

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
  Connection(ConnectionTable* table, IdleConnections* idle, const char* host)
      : pair_(host), place_(idle, pair_.server.get(), HostOfPeer(pair_.peer)) {
    EXPECT_TRUE(table->Add(pair_.server.get(), std::nullopt));
  }

  IdleConnections::Place& place() { return place_; }
  bool IsEnded() const { return pair_.IsEnded(); }

 private:
  TcpPair pair_;
  IdleConnections::Place place_;
};

class IdleConnectionsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Connection> Connect(const char* host) { return std::make_unique<Connection>(&table_, &idle_, host); }
  // For a newcomer from 127.0.0.`host`.
  bool EndIdlest(int host = 1) {
    const bool ended = idle_.EndIdlest(absl::StrCat("ipv4:127.0.0.", host));
    table_.RemoveClosed();
    return ended;
  }

  SetClock clock_;
  ConnectionTable table_{&clock_};
  IdleConnections idle_{&clock_, &table_};
  Connection first_{&table_, &idle_, "127.0.0.1"};
  Connection second_{&table_, &idle_, "127.0.0.1"};
};

TEST_F(IdleConnectionsTest, NoneIdle_NoneIsEnded) {
  EXPECT_FALSE(EndIdlest());
  first_.place().Enter(Idleness::kUnused);
  first_.place().Leave();
  EXPECT_FALSE(EndIdlest());
  EXPECT_FALSE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Unused_TheOldestIsEndedAtOnce_ForAHostThatHasNone) {
  second_.place().Enter(Idleness::kUnused);
  first_.place().Enter(Idleness::kUnused);
  second_.place().Enter(Idleness::kUnused);  // has its place already
  EXPECT_FALSE(EndIdlest(1));
  ASSERT_TRUE(EndIdlest(2));
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_TRUE(second_.place().IsEnded());
  EXPECT_FALSE(first_.IsEnded());
  EXPECT_FALSE(first_.place().IsEnded());
  ASSERT_TRUE(EndIdlest(2));
  EXPECT_TRUE(first_.IsEnded());
  EXPECT_FALSE(EndIdlest(2));
  first_.place().Leave();  // no effect
}

TEST_F(IdleConnectionsTest, Used_IsEndedAfterUnusedOnesAndSomeTime) {
  first_.place().Enter(Idleness::kUsed);
  second_.place().Enter(Idleness::kUnused);
  EXPECT_FALSE(EndIdlest());
  clock_.now = IdleConnections::kMinIdle;
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(first_.IsEnded());
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Used_TheOneIdleLongestIsEnded) {
  first_.place().Enter(Idleness::kUsed);
  second_.place().Enter(Idleness::kUsed);
  first_.place().Leave();  // a request
  first_.place().Enter(Idleness::kUsed);
  clock_.now = 2 * IdleConnections::kMinIdle;
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Exchange_GivesWayLast) {
  first_.place().Enter(Idleness::kExchange);
  second_.place().Enter(Idleness::kUsed);
  clock_.now = IdleConnections::kMinIdle;
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(first_.IsEnded());
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Exchange_GivesWayIfUsedOnesAreYoung) {
  first_.place().Enter(Idleness::kExchange);
  clock_.now = IdleConnections::kMinIdle;
  second_.place().Enter(Idleness::kUsed);
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(first_.IsEnded());
  EXPECT_FALSE(second_.IsEnded());
}

// The others have waited longer, and some for their first request.
TEST_F(IdleConnectionsTest, TheHostThatHoldsMost_GivesWay) {
  first_.place().Enter(Idleness::kUnused);
  second_.place().Enter(Idleness::kUsed);
  std::vector<std::unique_ptr<Connection>> greedy;
  for (int i = 0; i < 4; ++i) {
    greedy.push_back(Connect("127.0.0.2"));
    greedy.back()->place().Enter(Idleness::kExchange);
  }
  ASSERT_TRUE(EndIdlest(1));  // although none of them has waited for kMinIdle
  EXPECT_TRUE(greedy[0]->IsEnded());
  EXPECT_FALSE(EndIdlest(2));  // nobody else pays for its newcomers
  clock_.now = IdleConnections::kMinIdle;
  ASSERT_TRUE(EndIdlest(2));
  EXPECT_TRUE(greedy[1]->IsEnded());
  EXPECT_FALSE(first_.IsEnded());
  EXPECT_FALSE(second_.IsEnded());
}

TEST_F(IdleConnectionsTest, HostThatWorks_TheNextOneGivesWay) {
  const auto busy = Connect("127.0.0.2");
  const auto busy_too = Connect("127.0.0.2");
  const auto third = Connect("127.0.0.2");  // none of these is idle
  first_.place().Enter(Idleness::kUsed);
  ASSERT_TRUE(EndIdlest(3));
  EXPECT_TRUE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Ended_IsNotEndedAgain) {
  first_.place().Enter(Idleness::kUnused);
  ASSERT_TRUE(EndIdlest(2));
  first_.place().Leave();  // it writes the response to a request that had come
  first_.place().Enter(Idleness::kUnused);
  EXPECT_FALSE(EndIdlest(2));
}

}  // namespace
}  // namespace sparseagg::service
