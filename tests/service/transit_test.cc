#include "service/transit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "service/memory_shares.h"
#include "tests/service/busy_thread.h"
#include "tests/service/event.h"
#include "tests/service/manual_clock.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;

class TransitTest : public ::testing::Test {
 protected:
  // What the pool still does gives credit back.
  void TearDown() override { pool_.reset(); }

  // Takes credit that must be there at once.
  Credit Take(uint64_t bytes, Event* called_in = nullptr) {
    Credit taken;
    transit_.Acquire(
        bytes, [&](Credit credit) { taken = std::move(credit); },
        [called_in] {
          if (called_in != nullptr) called_in->Notify();
        });
    EXPECT_EQ(taken.bytes(), bytes);
    return taken;
  }

  ManualClock clock_;
  Timer timer_{&clock_};
  std::unique_ptr<WorkerPool> pool_ = std::make_unique<WorkerPool>(1);  // may end before the rest
  Transit transit_{100, &clock_, &timer_, pool_.get()};
};

TEST_F(TransitTest, Acquire_UpToTheLimit_IsGivenAtOnceAndGivenBack) {
  {
    const Credit first = Take(60);
    const Credit second = Take(40);
    EXPECT_EQ(transit_.taken(), 100);
  }
  EXPECT_EQ(transit_.taken(), 0);
}

TEST_F(TransitTest, Settle_KeepsWhatHasCome) {
  Credit credit = Take(90);
  credit.Settle(30);
  EXPECT_EQ(transit_.taken(), 30);
  credit.Settle(50);  // never more than it was
  EXPECT_EQ(transit_.taken(), 30);
  credit.Release();
  credit.Release();
  EXPECT_EQ(transit_.taken(), 0);
}

TEST_F(TransitTest, Acquire_MoreThanTheLimit_GoesAlone) {
  const auto held = transit_.TryHold(10);
  Credit credit = Take(1000);
  Event granted;
  transit_.Acquire(
      1, [&](const Credit&) { granted.Notify(); }, [] {});
  EXPECT_EQ(transit_.num_waiting(), 1);
  credit.Release();
  granted.Wait();
}

TEST_F(TransitTest, AcquireSoon_TurnComes_IsGiven) {
  Credit all = Take(100);
  Event granted;
  transit_.AcquireSoon(
      60, [&](const Credit& credit) { credit ? granted.Notify() : void(); }, [] {});
  clock_.Advance(Transit::kShortWait / 2, timer_);
  all.Release();
  granted.Wait();
  clock_.Advance(Transit::kShortWait, timer_);  // no more than once
}

TEST_F(TransitTest, AcquireSoon_TurnDoesNotCome_IsToldSoAndLetsTheNextPass) {
  Credit most = Take(90);
  most.Settle(90);  // called in no more
  Event given_up;
  transit_.AcquireSoon(
      60, [&](const Credit& credit) { credit ? void() : given_up.Notify(); }, [] {});
  Event granted;
  transit_.Acquire(
      10, [&](const Credit&) { granted.Notify(); }, [] {});
  EXPECT_EQ(transit_.num_waiting(), 2);
  clock_.Advance(Transit::kShortWait, timer_);
  given_up.Wait();
  granted.Wait();
  pool_.reset();
  EXPECT_EQ(transit_.num_waiting(), 0);
  EXPECT_EQ(transit_.taken(), 90);
}

// The pool's one thread is busy for longer than a peer may take: a peer is not to blame for that.
TEST_F(TransitTest, GrantedButNoThread_TheTimeDoesNotRun) {
  Credit all = Take(100);
  BusyThread thread(*pool_);
  Event granted;
  Event called_in;
  Credit kept;
  transit_.Acquire(
      100,
      [&](Credit credit) {
        kept = std::move(credit);
        granted.Notify();
      },
      [&] { called_in.Notify(); });
  Event other;
  transit_.Acquire(
      50, [&](const Credit&) { other.Notify(); }, [] {});
  all.Release();
  clock_.Advance(10 * Transit::kPatience, timer_);
  thread.LetGo();
  granted.Wait();
  EXPECT_FALSE(called_in.HasHappened());
  clock_.Advance(Transit::kPatience, timer_);  // now it is
  called_in.Wait();
  kept.Release();
  other.Wait();
}

// The pool has been told to call in a peer, and comes to it when that has done its part.
TEST_F(TransitTest, SlowPeer_DoesItsPartBeforeTheCall_IsNotCalledIn) {
  Event called_in;
  Credit credit = Take(100, &called_in);
  BusyThread thread(*pool_);
  Event granted;
  transit_.Acquire(
      100, [&](const Credit&) { granted.Notify(); }, [] {});
  clock_.Advance(Transit::kPatience, timer_);
  clock_.AwaitDue(timer_);
  credit.Settle(0);
  thread.LetGo();
  granted.Wait();  // the pool's thread has passed the call
  EXPECT_FALSE(called_in.HasHappened());
}

// Nobody is called in when the second ones get credit, and they are slow, too.
TEST_F(TransitTest, SlowPeersThatHadToWait_AreCalledInForThoseBehindThem) {
  Event first_called;
  Credit first = Take(100, &first_called);
  Event second_granted;
  Event second_called;
  Credit second;
  transit_.Acquire(
      100,
      [&](Credit credit) {
        second = std::move(credit);
        second_granted.Notify();
      },
      [&] { second_called.Notify(); });
  Event third;
  transit_.Acquire(
      100, [&](const Credit&) { third.Notify(); }, [] {});
  clock_.Advance(Transit::kPatience, timer_);
  first_called.Wait();
  first.Release();
  second_granted.Wait();
  clock_.Advance(Transit::kPatience, timer_);
  second_called.Wait();
  second.Release();
  third.Wait();
}

TEST_F(TransitTest, TryHold_HalfOfTheLimit_LeavesTheRestToMessages) {
  auto held = transit_.TryHold(50);
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(transit_.TryHold(1).has_value());
  const Credit message = Take(50);
  held->Settle(0);  // lasts as long as it is there
  EXPECT_EQ(transit_.taken(), 100);
  held.reset();
  EXPECT_EQ(transit_.taken(), 50);
}

// Streams that are opened while messages have all, and more of them wait.
TEST_F(TransitTest, TryHold_MessagesHaveAll_IsGivenUpToAQuarterOnTop) {
  Credit first = Take(60);
  Credit second = Take(40);
  auto held = transit_.TryHold(25);
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(transit_.TryHold(1).has_value());
  Event granted;
  transit_.Acquire(
      20, [&](const Credit&) { granted.Notify(); }, [] {});
  first.Settle(40);
  EXPECT_EQ(transit_.num_waiting(), 1);  // 105 and 20 are too much
  auto more = transit_.TryHold(20);
  EXPECT_TRUE(more.has_value());
  EXPECT_FALSE(transit_.TryHold(6).has_value());  // of half the limit
  more.reset();
  first.Release();
  granted.Wait();
}

TEST_F(TransitTest, Acquire_Full_IsServedInOrder) {
  Event unused;
  Credit all = Take(100, &unused);
  std::vector<int> order;  // only touched by the pool's thread until `done`
  Event done;
  for (int i = 0; i < 3; ++i) {
    // The second is small and must not overtake the first.
    transit_.Acquire(
        i == 1 ? 1 : 90,
        [&order, i, &done](const Credit&) {
          order.push_back(i);
          if (i == 2) done.Notify();
        },
        [] {});
  }
  EXPECT_EQ(transit_.num_waiting(), 3);
  all.Release();
  done.Wait();
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  pool_.reset();
  EXPECT_EQ(transit_.taken(), 0);
}

TEST_F(TransitTest, SlowPeers_OthersWait_OnlyAsManyAreCalledInAsAreNeeded) {
  Event first_called;
  Event second_called;
  Event third_called;
  Credit first = Take(30, &first_called);
  Credit second = Take(30, &second_called);
  Credit third = Take(30, &third_called);
  first.Settle(30);  // its peer has done its part
  clock_.Advance(10 * Transit::kPatience, timer_);
  Event granted;
  transit_.Acquire(
      40, [&](const Credit&) { granted.Notify(); }, [] {});
  clock_.Advance(Transit::kPatience, timer_);
  second_called.Wait();
  third_called.Wait();  // 10 are free, 30 are not enough
  EXPECT_FALSE(first_called.HasHappened());
  EXPECT_FALSE(granted.HasHappened());
  second.Release();
  granted.Wait();
}

TEST_F(TransitTest, CalledIn_ButNotGivenBack_IsCalledInAgainWhileOthersWait) {
  std::atomic<int> calls = 0;
  const auto await_calls = [&](int count) {
    while (calls != count) std::this_thread::yield();
    Event passed;  // the pool's thread has passed the last call
    pool_->Post([&] { passed.Notify(); });
    passed.Wait();
  };
  Credit taken;
  transit_.Acquire(
      100, [&](Credit credit) { taken = std::move(credit); }, [&] { ++calls; });
  Event first;
  transit_.AcquireSoon(
      100, [&](const Credit&) { first.Notify(); }, [] {});
  clock_.Advance(Transit::kPatience, timer_);
  await_calls(1);
  for (int i = 2; i <= 4; ++i) {
    clock_.Advance(Transit::kBetweenCalls, timer_);
    await_calls(i);
  }
  clock_.Advance(Transit::kShortWait, timer_);
  first.Wait();  // has given up
  await_calls(calls);
  const int before = calls;
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(Transit::kBetweenCalls, timer_);
    clock_.AwaitDue(timer_);
  }
  await_calls(before);
  Event second;
  transit_.Acquire(
      100, [&](const Credit&) { second.Notify(); }, [] {});
  clock_.Advance(Transit::kBetweenCalls, timer_);
  await_calls(before + 1);
  taken.Release();
  second.Wait();
  clock_.Advance(10 * Transit::kBetweenCalls, timer_);
  clock_.AwaitDue(timer_);
  await_calls(before + 1);
}

TEST_F(TransitTest, SlowPeer_NobodyWaits_HasAllTheTime) {
  Event called_in;
  const Credit credit = Take(100, &called_in);
  clock_.Advance(absl::Hours(1), timer_);
  pool_.reset();  // runs what was posted
  EXPECT_FALSE(called_in.HasHappened());
}

TEST(TransitRaceTest, ManyThreads_NeverPassTheLimitAndAllAreServed) {
  constexpr uint64_t kSeed = 7;
  ManualClock clock;
  Timer timer(&clock);
  std::atomic<int> served{0};
  std::atomic<bool> passed{false};
  WorkerPool pool(2);
  Transit transit(100, &clock, &timer, &pool);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(kSeed + static_cast<uint64_t>(t));
      for (int i = 0; i < 500; ++i) {
        transit.Acquire(
            1 + random() % 60,
            [&](Credit credit) {
              if (transit.taken() > 100) passed = true;
              credit.Settle(credit.bytes() / 2);
              ++served;
            },
            [] {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (served < 2000) std::this_thread::yield();
  while (transit.taken() > 0) std::this_thread::yield();
  EXPECT_FALSE(passed) << "seed " << kSeed;
}

TEST(MemorySharesTest, Divide_SharesAddUpToTheLimit) {
  Limits limits;
  for (const uint64_t mib : {256, 384, 1024, 16384}) {
    limits.memory_limit_bytes = mib << 20;
    const MemoryShares shares = Divide(limits);
    EXPECT_EQ(shares.kept + shares.transit + shares.process, mib << 20);
    EXPECT_GE(shares.kept, (mib << 20) / 2 - (uint64_t{1} << 20)) << mib;
    EXPECT_GE(shares.transit, 4 * MostMessageBytes(limits)) << mib;
  }
}

TEST(MemorySharesTest, Divide_NoLimitOrTooSmall_BoundsOnlyRounds) {
  Limits limits;
  EXPECT_EQ(Divide(limits).kept, 0);
  EXPECT_EQ(Divide(limits).transit, 0);
  limits.memory_limit_bytes = 1'000'000;
  EXPECT_EQ(Divide(limits).kept, 1'000'000);
}

TEST(MemorySharesTest, FitToMemory_ConnectionsAreAsManyAsMemoryAndTheirLimitAllow) {
  const auto most = [](uint64_t memory_mib, uint64_t max_connections) {
    Limits limits;
    limits.memory_limit_bytes = memory_mib << 20;
    limits.max_connections = max_connections;
    return FitToMemory(limits).max_connections;
  };
  EXPECT_EQ(most(256, 10'000), 1024);  // 20 KiB each of a quarter of 80 MiB
  EXPECT_EQ(most(256, 0), 1024);
  EXPECT_EQ(most(256, 4), 4);
  EXPECT_EQ(most(0, 10'000), 10'000);
  EXPECT_EQ(most(0, 0), 0);
  EXPECT_EQ(most(100, 7), 7);  // too little to be divided
}

TEST(MemorySharesTest, FitToMemory_OneMessageAndOnePageFitBesideWhatMayBeHeld) {
  for (const uint64_t mib : {256, 300, 1024, 16384}) {
    for (const uint64_t wanted : {uint64_t{0}, uint64_t{1000}, uint64_t{4} << 20, uint64_t{128} << 20, UINT64_MAX}) {
      Limits limits;
      limits.memory_limit_bytes = mib << 20;
      limits.max_message_bytes = wanted;
      limits.max_page_bytes = wanted;
      const Limits fitted = FitToMemory(limits);
      const uint64_t transit = Divide(fitted).transit;
      EXPECT_LE(MostMessageBytes(fitted), transit / 2) << mib << " " << wanted;
      EXPECT_LE(PageTransitBytes(fitted.max_page_bytes), transit / 2) << mib << " " << wanted;
      EXPECT_GT(fitted.max_message_bytes, 0);
      EXPECT_GT(fitted.max_page_bytes, 0);
      if (wanted != 0 && wanted <= size_t{4} << 20) {
        EXPECT_EQ(fitted.max_message_bytes, wanted);
        EXPECT_EQ(fitted.max_page_bytes, wanted);
      }
    }
  }
}

TEST(MemorySharesTest, FitToMemory_WithoutALimitChangesNothing) {
  Limits limits;
  limits.max_message_bytes = 0;
  limits.max_page_bytes = UINT64_MAX;
  EXPECT_EQ(FitToMemory(limits).max_message_bytes, 0);
  EXPECT_EQ(FitToMemory(limits).max_page_bytes, UINT64_MAX);
  EXPECT_EQ(PageTransitBytes(UINT64_MAX), UINT64_MAX);
}

}  // namespace
}  // namespace sparseagg::service
