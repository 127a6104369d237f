#include "service/admission/in_flight_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "service/admission/memory_shares.h"
#include "tests/service/support/event.h"
#include "tests/service/support/in_flight_memory_fixture.h"
#include "tests/service/support/manual_clock.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;

TEST_F(InFlightMemoryTest, Acquire_UpToTheLimit_IsGivenAtOnceAndGivenBack) {
  {
    const InFlightReservation first = Take(60);
    const InFlightReservation second = Take(40);
    EXPECT_EQ(in_flight_.reserved(), 100);
  }
  EXPECT_EQ(in_flight_.reserved(), 0);
}

TEST_F(InFlightMemoryTest, Settle_KeepsWhatHasCome) {
  InFlightReservation credit = Take(90);
  credit.ShrinkTo(30);
  EXPECT_EQ(in_flight_.reserved(), 30);
  credit.ShrinkTo(50);  // never more than it was
  EXPECT_EQ(in_flight_.reserved(), 30);
  credit.Release();
  credit.Release();
  EXPECT_EQ(in_flight_.reserved(), 0);
}

TEST_F(InFlightMemoryTest, Acquire_MoreThanTheLimit_GoesAlone) {
  const auto held = in_flight_.TryReserveForStream(10);
  InFlightReservation credit = Take(1000);
  Event granted;
  in_flight_.Acquire(
      1, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  EXPECT_EQ(in_flight_.num_waiting(), 1);
  credit.Release();
  granted.Wait();
}

TEST_F(InFlightMemoryTest, AcquireShortly_TurnComes_IsGiven) {
  InFlightReservation all = Take(100);
  Event granted;
  in_flight_.Acquire(
      60, [&](const InFlightReservation& credit) { credit ? granted.Notify() : void(); }, [] {},
      InFlightMemory::Wait::kBounded);
  clock_.Advance(InFlightMemory::kBoundedWait / 2, timer_);
  all.Release();
  granted.Wait();
  clock_.Advance(InFlightMemory::kBoundedWait, timer_);  // no more than once
}

TEST_F(InFlightMemoryTest, AcquireShortly_TurnDoesNotCome_IsToldSoAndLetsTheNextPass) {
  InFlightReservation most = Take(90);
  most.ShrinkTo(90);  // called in no more
  Event given_up;
  in_flight_.Acquire(
      60, [&](const InFlightReservation& credit) { credit ? void() : given_up.Notify(); }, [] {},
      InFlightMemory::Wait::kBounded);
  Event granted;
  in_flight_.Acquire(
      10, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  EXPECT_EQ(in_flight_.num_waiting(), 2);
  clock_.Advance(InFlightMemory::kBoundedWait, timer_);
  given_up.Wait();
  granted.Wait();
  pool_.reset();
  EXPECT_EQ(in_flight_.num_waiting(), 0);
  EXPECT_EQ(in_flight_.reserved(), 90);
}

TEST_F(InFlightMemoryTest, Leave_LetsTheNextPassAndIsNotGivenAnything) {
  const InFlightReservation most = Take(90);
  Event granted;
  const uint64_t first = in_flight_.Acquire(
      60, [](const InFlightReservation&) { FAIL(); }, [] {}, InFlightMemory::Wait::kBounded);
  in_flight_.Acquire(
      10, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  EXPECT_TRUE(in_flight_.CancelWait(first));
  granted.Wait();
  EXPECT_EQ(in_flight_.num_waiting(), 0);
  EXPECT_FALSE(in_flight_.CancelWait(first));
  EXPECT_FALSE(in_flight_.CancelWait(0));
  clock_.Advance(InFlightMemory::kBoundedWait, timer_);
  clock_.AwaitDue(timer_);
}

TEST_F(InFlightMemoryTest, TryHold_HalfOfTheLimit_LeavesTheRestToMessages) {
  auto held = in_flight_.TryReserveForStream(50);
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(in_flight_.TryReserveForStream(1).has_value());
  const InFlightReservation message = Take(50);
  held->ShrinkTo(0);  // lasts as long as it is there
  EXPECT_EQ(in_flight_.reserved(), 100);
  held.reset();
  EXPECT_EQ(in_flight_.reserved(), 50);
}

// Streams that are opened while messages have all, and more of them wait.
TEST_F(InFlightMemoryTest, TryHold_MessagesHaveAll_IsGivenUpToAQuarterOnTop) {
  InFlightReservation first = Take(60);
  InFlightReservation second = Take(40);
  auto held = in_flight_.TryReserveForStream(25);
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(in_flight_.TryReserveForStream(1).has_value());
  Event granted;
  in_flight_.Acquire(
      20, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  first.ShrinkTo(40);
  EXPECT_EQ(in_flight_.num_waiting(), 1);  // 105 and 20 are too much
  auto more = in_flight_.TryReserveForStream(20);
  EXPECT_TRUE(more.has_value());
  EXPECT_FALSE(in_flight_.TryReserveForStream(6).has_value());  // of half the limit
  more.reset();
  first.Release();
  granted.Wait();
}

TEST_F(InFlightMemoryTest, Acquire_Full_IsServedInOrder) {
  Event unused;
  InFlightReservation all = Take(100, &unused);
  std::vector<int> order;  // only touched by the pool's thread until `done`
  Event done;
  for (int i = 0; i < 3; ++i) {
    // The second is small and must not overtake the first.
    in_flight_.Acquire(
        i == 1 ? 1 : 90,
        [&order, i, &done](const InFlightReservation&) {
          order.push_back(i);
          if (i == 2) done.Notify();
        },
        [] {});
  }
  EXPECT_EQ(in_flight_.num_waiting(), 3);
  all.Release();
  done.Wait();
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  pool_.reset();
  EXPECT_EQ(in_flight_.reserved(), 0);
}

TEST(TransitRaceTest, ManyThreads_NeverPassTheLimitAndAllAreServed) {
  constexpr uint64_t kSeed = 7;
  ManualClock clock;
  Timer timer(&clock);
  std::atomic<int> served{0};
  std::atomic<bool> passed{false};
  WorkerPool pool(2);
  InFlightMemory in_flight(100, &clock, &timer, &pool);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(kSeed + static_cast<uint64_t>(t));
      for (int i = 0; i < 500; ++i) {
        in_flight.Acquire(
            1 + random() % 60,
            [&](InFlightReservation credit) {
              if (in_flight.reserved() > 100) passed = true;
              credit.ShrinkTo(credit.bytes() / 2);
              ++served;
            },
            [] {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (served < 2000) std::this_thread::yield();
  while (in_flight.reserved() > 0) std::this_thread::yield();
  EXPECT_FALSE(passed) << "seed " << kSeed;
}

TEST(MemorySharesTest, Divide_SharesAddUpToTheLimit) {
  Limits limits;
  for (const uint64_t mib : {256, 384, 1024, 16384}) {
    limits.memory_limit_bytes = mib << 20;
    const MemoryShares shares = DivideMemory(limits);
    EXPECT_EQ(shares.kept + shares.in_flight + shares.process, mib << 20);
    EXPECT_GE(shares.kept, (mib << 20) / 2 - (uint64_t{1} << 20)) << mib;
    EXPECT_GE(shares.in_flight, 4 * MaxBufferedMessageBytes(limits)) << mib;
  }
}

TEST(MemorySharesTest, Divide_NoLimitOrTooSmall_BoundsOnlyRounds) {
  Limits limits;
  EXPECT_EQ(DivideMemory(limits).kept, 0);
  EXPECT_EQ(DivideMemory(limits).in_flight, 0);
  limits.memory_limit_bytes = 1'000'000;
  EXPECT_EQ(DivideMemory(limits).kept, 1'000'000);
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
      const uint64_t in_flight = DivideMemory(fitted).in_flight;
      EXPECT_LE(MaxBufferedMessageBytes(fitted), in_flight / 2) << mib << " " << wanted;
      EXPECT_LE(PageInFlightBytes(fitted.max_page_bytes), in_flight / 2) << mib << " " << wanted;
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
  EXPECT_EQ(PageInFlightBytes(UINT64_MAX), UINT64_MAX);
}

}  // namespace
}  // namespace sparseagg::service
