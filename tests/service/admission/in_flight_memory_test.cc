#include "service/admission/in_flight_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/service/support/in_flight_memory_fixture.h"
#include "tests/service/support/manual_clock.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;

TEST_F(InFlightMemoryTest, Acquire_UpToTheLimit_IsGrantedAtOnceAndReleased) {
  {
    const InFlightReservation first = Take(60);
    const InFlightReservation second = Take(40);
    EXPECT_EQ(in_flight_.reserved(), 100);
  }
  EXPECT_EQ(in_flight_.reserved(), 0);
}

TEST_F(InFlightMemoryTest, ShrinkTo_ReleasesTheRest) {
  InFlightReservation reservation = Take(90);
  reservation.ShrinkTo(30);
  EXPECT_EQ(in_flight_.reserved(), 30);
  reservation.ShrinkTo(50);  // more than the reservation has
  EXPECT_EQ(in_flight_.reserved(), 30);
  reservation.Release();
  reservation.Release();
  EXPECT_EQ(in_flight_.reserved(), 0);
}

TEST_F(InFlightMemoryTest, Acquire_MoreThanTheLimit_IsGrantedAlone) {
  const auto held = in_flight_.TryReserveForStream(10);
  InFlightReservation reservation = Take(1000);
  Event granted;
  in_flight_.Acquire(
      1, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  EXPECT_EQ(in_flight_.num_waiting(), 1);
  reservation.Release();
  granted.Wait();
}

TEST_F(InFlightMemoryTest, AcquireBounded_MemoryInTime_IsGranted) {
  InFlightReservation all = Take(100);
  Event granted;
  in_flight_.Acquire(
      60, [&](const InFlightReservation& reservation) { reservation ? granted.Notify() : void(); }, [] {},
      InFlightMemory::Wait::kBounded);
  clock_.Advance(InFlightMemory::kBoundedWait / 2, timer_);
  all.Release();
  granted.Wait();
  clock_.Advance(InFlightMemory::kBoundedWait, timer_);  // not granted twice
}

TEST_F(InFlightMemoryTest, AcquireBounded_NoMemoryInTime_IsEmptyAndTheNextIsGranted) {
  InFlightReservation most = Take(90);
  most.ShrinkTo(90);  // ends the deadline
  Event expired;
  in_flight_.Acquire(
      60, [&](const InFlightReservation& reservation) { reservation ? void() : expired.Notify(); }, [] {},
      InFlightMemory::Wait::kBounded);
  Event granted;
  in_flight_.Acquire(
      10, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  EXPECT_EQ(in_flight_.num_waiting(), 2);
  clock_.Advance(InFlightMemory::kBoundedWait, timer_);
  expired.Wait();
  granted.Wait();
  pool_.reset();
  EXPECT_EQ(in_flight_.num_waiting(), 0);
  EXPECT_EQ(in_flight_.reserved(), 90);
}

TEST_F(InFlightMemoryTest, CancelWait_NeverGrantedAndTheNextIsGranted) {
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

TEST_F(InFlightMemoryTest, Acquire_HostThatHoldsLeast_IsGrantedFirst) {
  constexpr char kMany[] = "ipv4:127.0.0.2:1000";
  InFlightReservation held;
  in_flight_.Acquire(
      70, [&](InFlightReservation granted) { held = std::move(granted); }, [] {}, InFlightMemory::Wait::kUnbounded,
      kMany);
  InFlightReservation rest = Take(30);
  std::array<Event, 3> many_granted;
  for (Event& one_granted : many_granted) {
    in_flight_.Acquire(
        20, [&](const InFlightReservation&) { one_granted.Notify(); }, [] {}, InFlightMemory::Wait::kUnbounded,
        "ipv4:127.0.0.2:1001");
  }
  Event granted;
  in_flight_.Acquire(
      30,
      [&](const InFlightReservation&) {
        EXPECT_EQ(in_flight_.num_waiting(), 3);
        granted.Notify();
      },
      [] {}, InFlightMemory::Wait::kUnbounded, "ipv4:127.0.0.1:1000");
  EXPECT_EQ(in_flight_.num_waiting(), 4);
  rest.Release();
  granted.Wait();
  held.Release();
  for (Event& one_granted : many_granted) one_granted.Wait();
}

TEST_F(InFlightMemoryTest, TryReserveForStream_HandsTheTurnToAnotherHost_WhichIsGranted) {
  const auto take = [&](uint64_t bytes, const char* peer) {
    InFlightReservation taken;
    in_flight_.Acquire(
        bytes, [&](InFlightReservation granted) { taken = std::move(granted); }, [] {},
        InFlightMemory::Wait::kUnbounded, peer);
    return taken;
  };
  constexpr char kFirst[] = "ipv4:127.0.0.1:1000";
  constexpr char kSecond[] = "ipv4:127.0.0.2:1000";
  const InFlightReservation rest = Take(30);
  const InFlightReservation of_first = take(10, kFirst);
  const InFlightReservation of_second = take(20, kSecond);
  const uint64_t large = in_flight_.Acquire(
      45, [](const InFlightReservation&) { FAIL(); }, [] {}, InFlightMemory::Wait::kUnbounded, kFirst);
  Event granted;
  in_flight_.Acquire(
      10, [&](const InFlightReservation&) { granted.Notify(); }, [] {}, InFlightMemory::Wait::kUnbounded, kSecond);
  EXPECT_EQ(in_flight_.num_waiting(), 2);
  const auto stream = in_flight_.TryReserveForStream(15, kFirst);
  granted.Wait();
  EXPECT_TRUE(in_flight_.CancelWait(large));
}

TEST_F(InFlightMemoryTest, AcquireBounded_WhatItsFunctionsOwn_IsFreedWithoutTheLock) {
  const InFlightReservation all = Take(100);
  Event freed;
  std::shared_ptr<void> call(nullptr, [&](void*) {
    EXPECT_EQ(in_flight_.num_waiting(), 0);
    freed.Notify();
  });
  in_flight_.Acquire(
      60, [](const InFlightReservation&) {}, [call] {}, InFlightMemory::Wait::kBounded);
  call.reset();
  clock_.Advance(InFlightMemory::kBoundedWait, timer_);
  freed.Wait();
}

TEST_F(InFlightMemoryTest, Acquire_OneHost_LeavesAQuarterToAnother) {
  constexpr char kMany[] = "ipv4:127.0.0.2:1000";
  std::vector<InFlightReservation> held;
  Event late;
  for (int i = 0; i < 4; ++i) {
    in_flight_.Acquire(
        25, [&, i](InFlightReservation granted) { i < 3 ? held.push_back(std::move(granted)) : late.Notify(); }, [] {},
        InFlightMemory::Wait::kUnbounded, kMany);
  }
  EXPECT_EQ(held.size(), 3);
  EXPECT_EQ(in_flight_.num_waiting(), 1);
  bool is_granted = false;
  in_flight_.Acquire(
      25, [&](const InFlightReservation&) { is_granted = true; }, [] {}, InFlightMemory::Wait::kUnbounded,
      "ipv4:127.0.0.1:1000");
  EXPECT_TRUE(is_granted);
  held.clear();
  late.Wait();
}

TEST_F(InFlightMemoryTest, TryReserveForStream_OneHost_LeavesAQuarterToAnother) {
  const auto first = in_flight_.TryReserveForStream(38, "ipv4:127.0.0.2:1000");
  EXPECT_TRUE(first.has_value());
  EXPECT_FALSE(in_flight_.TryReserveForStream(1, "ipv4:127.0.0.2:1001").has_value());
  EXPECT_TRUE(in_flight_.TryReserveForStream(12, "ipv4:127.0.0.1:1000").has_value());
}

TEST_F(InFlightMemoryTest, UnixSockets_AreOfNoHost) {
  const auto first = in_flight_.TryReserveForStream(25, "unix:");
  EXPECT_TRUE(first.has_value());
  EXPECT_TRUE(in_flight_.TryReserveForStream(25, "unix:").has_value());
}

TEST_F(InFlightMemoryTest, ShrinkTo_Nothing_TheHostStaysUntilTheRelease) {
  InFlightReservation reservation;
  in_flight_.Acquire(
      10, [&](InFlightReservation granted) { reservation = std::move(granted); }, [] {},
      InFlightMemory::Wait::kUnbounded, "ipv4:127.0.0.1:1000");
  reservation.ShrinkTo(0);
  reservation.Release();
  EXPECT_EQ(in_flight_.reserved(), 0);
}

TEST_F(InFlightMemoryTest, TryReserveForStream_HalfOfTheLimit_LeavesTheRestToMessages) {
  auto held = in_flight_.TryReserveForStream(50);
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(in_flight_.TryReserveForStream(1).has_value());
  const InFlightReservation message = Take(50);
  held->ShrinkTo(0);  // does nothing to stream memory
  EXPECT_EQ(in_flight_.reserved(), 100);
  held.reset();
  EXPECT_EQ(in_flight_.reserved(), 50);
}

// Streams open while messages have the whole limit and more messages wait.
TEST_F(InFlightMemoryTest, TryReserveForStream_MessagesHaveAll_ExceedsTheLimitByAQuarter) {
  InFlightReservation first = Take(60);
  InFlightReservation second = Take(40);
  auto held = in_flight_.TryReserveForStream(25);
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(in_flight_.TryReserveForStream(1).has_value());
  Event granted;
  in_flight_.Acquire(
      20, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  first.ShrinkTo(40);
  EXPECT_EQ(in_flight_.num_waiting(), 1);  // 105 + 20 exceed the limit
  auto more = in_flight_.TryReserveForStream(20);
  EXPECT_TRUE(more.has_value());
  EXPECT_FALSE(in_flight_.TryReserveForStream(6).has_value());  // beyond half of the limit
  more.reset();
  first.Release();
  granted.Wait();
}

TEST_F(InFlightMemoryTest, Acquire_Full_IsGrantedInOrder) {
  Event unused;
  InFlightReservation all = Take(100, &unused);
  std::vector<int> order;  // the pool's thread owns it until `done`
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

TEST(InFlightMemoryRaceTest, ManyThreads_NeverExceedTheLimitAndAllAreGranted) {
  constexpr uint64_t kMemorySeed = 7;
  ManualClock clock;
  Timer timer(&clock);
  std::atomic<int> num_granted{0};
  std::atomic<bool> exceeded{false};
  WorkerPool pool(2);
  InFlightMemory in_flight(100, &clock, &timer, &pool);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(kMemorySeed + static_cast<uint64_t>(t));
      for (int i = 0; i < 500; ++i) {
        in_flight.Acquire(
            1 + random() % 60,
            [&](InFlightReservation reservation) {
              if (in_flight.reserved() > 100) exceeded = true;
              reservation.ShrinkTo(reservation.bytes() / 2);
              ++num_granted;
            },
            [] {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (num_granted < 2000) std::this_thread::yield();
  while (in_flight.reserved() > 0) std::this_thread::yield();
  EXPECT_FALSE(exceeded) << "seed " << kMemorySeed;
}

}  // namespace
}  // namespace sparseagg::service
