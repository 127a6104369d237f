// Which connections give way to new ones, by what their owner says.
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

// A clock that goes on a little at each reading, so that no two connections wait equally long.
class SetClock final : public Clock {
 public:
  absl::Duration Monotonic() const override { return now += absl::Nanoseconds(1); }
  absl::Time WallTime() const override { return absl::UnixEpoch() + now; }

  mutable absl::Duration now = absl::ZeroDuration();
};

// A connection and its client's end.
class Connection {
 public:
  Connection(ConnectionTable* table, const char* host) : table_(*table), pair_(host) {
    EXPECT_TRUE(table_.Add(pair_.server.get(), pair_.peer, std::nullopt));
  }

  void Wait(std::optional<Idleness> idleness) { table_.SetIdleness(pair_.peer, idleness); }
  bool IsEnded() const {
    EXPECT_EQ(table_.Has(pair_.peer), !pair_.IsEnded());
    return pair_.IsEnded();
  }

 private:
  ConnectionTable& table_;
  TcpPair pair_;
};

class IdleConnectionsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Connection> Connect(const char* host) { return std::make_unique<Connection>(&table_, host); }
  // For a newcomer from 127.0.0.`host`.
  bool EndIdlest(int host = 1) { return table_.EndIdlest(absl::StrCat("ipv4:127.0.0.", host)); }

  SetClock clock_;
  ConnectionTable table_{&clock_};
  Connection first_{&table_, "127.0.0.1"};
  Connection second_{&table_, "127.0.0.1"};
};

TEST_F(IdleConnectionsTest, NoneIdle_NoneIsEnded) {
  EXPECT_FALSE(EndIdlest());
  first_.Wait(Idleness::kUnused);
  first_.Wait(std::nullopt);
  EXPECT_FALSE(EndIdlest());
  EXPECT_FALSE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Unused_TheOldestIsEndedAtOnce_ForAHostThatHasNone) {
  second_.Wait(Idleness::kUnused);
  first_.Wait(Idleness::kUnused);
  second_.Wait(Idleness::kUnused);  // has its place already
  EXPECT_FALSE(EndIdlest(1));
  ASSERT_TRUE(EndIdlest(2));
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(first_.IsEnded());
  ASSERT_TRUE(EndIdlest(2));
  EXPECT_TRUE(first_.IsEnded());
  EXPECT_FALSE(EndIdlest(2));
  first_.Wait(std::nullopt);  // no effect
}

TEST_F(IdleConnectionsTest, Used_IsEndedAfterUnusedOnesAndSomeTime) {
  first_.Wait(Idleness::kUsed);
  second_.Wait(Idleness::kUnused);
  EXPECT_FALSE(EndIdlest());
  clock_.now += ConnectionTable::kIdle;
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(first_.IsEnded());
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Used_TheOneIdleLongestIsEnded) {
  first_.Wait(Idleness::kUsed);
  second_.Wait(Idleness::kUsed);
  first_.Wait(std::nullopt);  // a request
  first_.Wait(Idleness::kUsed);
  clock_.now += 2 * ConnectionTable::kIdle;
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Exchange_GivesWayLast) {
  first_.Wait(Idleness::kExchange);
  second_.Wait(Idleness::kUsed);
  clock_.now += ConnectionTable::kIdle;
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(second_.IsEnded());
  EXPECT_FALSE(first_.IsEnded());
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Exchange_GivesWayIfUsedOnesAreYoung) {
  first_.Wait(Idleness::kExchange);
  clock_.now += ConnectionTable::kIdle;
  second_.Wait(Idleness::kUsed);
  ASSERT_TRUE(EndIdlest());
  EXPECT_TRUE(first_.IsEnded());
  EXPECT_FALSE(second_.IsEnded());
}

// The others have waited longer, and some for their first request.
TEST_F(IdleConnectionsTest, TheHostThatHoldsMost_GivesWay) {
  first_.Wait(Idleness::kUnused);
  second_.Wait(Idleness::kUsed);
  std::vector<std::unique_ptr<Connection>> greedy;
  for (int i = 0; i < 4; ++i) {
    greedy.push_back(Connect("127.0.0.2"));
    greedy.back()->Wait(Idleness::kExchange);
  }
  ASSERT_TRUE(EndIdlest(1));  // although none of them has waited for kIdle
  EXPECT_TRUE(greedy[0]->IsEnded());
  EXPECT_FALSE(EndIdlest(2));  // nobody else pays for its newcomers
  clock_.now += ConnectionTable::kIdle;
  ASSERT_TRUE(EndIdlest(2));
  EXPECT_TRUE(greedy[1]->IsEnded());
  EXPECT_FALSE(first_.IsEnded());
  EXPECT_FALSE(second_.IsEnded());
}

TEST_F(IdleConnectionsTest, HostThatWorks_TheNextOneGivesWay) {
  const auto busy = Connect("127.0.0.2");
  const auto busy_too = Connect("127.0.0.2");
  const auto third = Connect("127.0.0.2");  // none of these is idle
  first_.Wait(Idleness::kUsed);
  ASSERT_TRUE(EndIdlest(3));
  EXPECT_TRUE(first_.IsEnded());
}

TEST_F(IdleConnectionsTest, Ended_IsNotEndedAgain) {
  first_.Wait(Idleness::kUnused);
  ASSERT_TRUE(EndIdlest(2));
  first_.Wait(std::nullopt);  // it writes the response to a request that had come
  first_.Wait(Idleness::kUnused);
  EXPECT_FALSE(EndIdlest(2));
}

}  // namespace
}  // namespace sparseagg::service
