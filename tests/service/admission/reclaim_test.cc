// Slow peers whose reservations are reclaimed because other calls need the memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "tests/service/support/in_flight_memory_fixture.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {
namespace {

class ReclaimTest : public InFlightMemoryTest {
 protected:
  // Waits until the pool has run the tasks posted so far.
  void AwaitPool() {
    Event passed;
    pool_->Post([&] { passed.Notify(); });
    passed.Wait();
  }
  void PassTime(absl::Duration time) {
    clock_.Advance(time, timer_);
    clock_.AwaitDue(timer_);
  }
};

// The pool's only thread is busy for longer than a peer may take. The peer does not pay for that.
TEST_F(ReclaimTest, GrantedButNoThread_DeadlineDoesNotRun) {
  InFlightReservation all = Take(100);
  BusyThread thread(*pool_);
  Event granted;
  Event reclaimed;
  InFlightReservation kept;
  in_flight_.Acquire(
      100,
      [&](InFlightReservation reservation) {
        kept = std::move(reservation);
        granted.Notify();
      },
      [&] { reclaimed.Notify(); });
  Event other;
  in_flight_.Acquire(
      50, [&](const InFlightReservation&) { other.Notify(); }, [] {});
  all.Release();
  clock_.Advance(10 * InFlightMemory::kReclaimAfter, timer_);
  clock_.AwaitDue(timer_);  // else the look at deadlines that is due may happen after the next advance
  thread.Release();
  granted.Wait();
  EXPECT_FALSE(reclaimed.HasHappened());
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);
  reclaimed.Wait();
  kept.Release();
  other.Wait();
}

// The reclaim attempt is posted, but the peer does its part before a pool thread runs the attempt.
TEST_F(ReclaimTest, SlowPeer_DoesItsPartBeforeTheAttempt_IsNotReclaimed) {
  Event reclaimed;
  InFlightReservation reservation = Take(100, &reclaimed);
  BusyThread thread(*pool_);
  Event granted;
  in_flight_.Acquire(
      100, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);
  clock_.AwaitDue(timer_);
  reservation.ShrinkTo(0);
  thread.Release();
  granted.Wait();  // the pool's thread is past the attempt
  EXPECT_FALSE(reclaimed.HasHappened());
}

// No call is being reclaimed when the second call gets its memory, and the second peer is slow, too.
TEST_F(ReclaimTest, SlowPeersThatHadToWait_AreReclaimedForTheNext) {
  Event first_reclaimed;
  InFlightReservation first = Take(100, &first_reclaimed);
  Event second_granted;
  Event second_reclaimed;
  InFlightReservation second;
  in_flight_.Acquire(
      100,
      [&](InFlightReservation reservation) {
        second = std::move(reservation);
        second_granted.Notify();
      },
      [&] { second_reclaimed.Notify(); });
  Event third;
  in_flight_.Acquire(
      100, [&](const InFlightReservation&) { third.Notify(); }, [] {});
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);
  first_reclaimed.Wait();
  first.Release();
  second_granted.Wait();
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);
  second_reclaimed.Wait();
  second.Release();
  third.Wait();
}

TEST_F(ReclaimTest, SlowPeers_OthersWait_OnlyAsManyAreReclaimedAsAreNeeded) {
  Event first_reclaimed;
  Event second_reclaimed;
  Event third_reclaimed;
  InFlightReservation first = Take(30, &first_reclaimed);
  InFlightReservation second = Take(30, &second_reclaimed);
  InFlightReservation third = Take(30, &third_reclaimed);
  first.ShrinkTo(30);  // its peer has done its part
  clock_.Advance(10 * InFlightMemory::kReclaimAfter, timer_);
  Event granted;
  in_flight_.Acquire(
      40, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);
  second_reclaimed.Wait();
  third_reclaimed.Wait();  // 10 are free, 30 are not enough
  EXPECT_FALSE(first_reclaimed.HasHappened());
  EXPECT_FALSE(granted.HasHappened());
  second.Release();
  granted.Wait();
}

TEST_F(ReclaimTest, ReclaimedButNotReleased_IsReclaimedAgainWhileOthersWait) {
  std::atomic<int> calls = 0;
  const auto await_calls = [&](int count) {
    while (calls != count) std::this_thread::yield();
    Event passed;  // the pool's thread is past the last attempt
    pool_->Post([&] { passed.Notify(); });
    passed.Wait();
  };
  InFlightReservation taken;
  in_flight_.Acquire(
      100, [&](InFlightReservation reservation) { taken = std::move(reservation); }, [&] { ++calls; });
  Event first;
  in_flight_.Acquire(
      100, [&](const InFlightReservation&) { first.Notify(); }, [] {}, InFlightMemory::Wait::kBounded);
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);
  await_calls(1);
  for (int i = 2; i <= 4; ++i) {
    clock_.Advance(InFlightMemory::kReclaimInterval, timer_);
    await_calls(i);
  }
  clock_.Advance(InFlightMemory::kBoundedWait, timer_);
  first.Wait();  // has expired
  await_calls(calls);
  const int before = calls;
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(InFlightMemory::kReclaimInterval, timer_);
    clock_.AwaitDue(timer_);
  }
  await_calls(before);
  Event second;
  in_flight_.Acquire(
      100, [&](const InFlightReservation&) { second.Notify(); }, [] {});
  clock_.Advance(InFlightMemory::kReclaimInterval, timer_);
  await_calls(before + 1);
  taken.Release();
  second.Wait();
  clock_.Advance(10 * InFlightMemory::kReclaimInterval, timer_);
  clock_.AwaitDue(timer_);
  await_calls(before + 1);
}

TEST_F(ReclaimTest, SlowPeer_NobodyWaits_IsNotReclaimed) {
  Event reclaimed;
  const InFlightReservation reservation = Take(100, &reclaimed);
  clock_.Advance(absl::Hours(1), timer_);
  pool_.reset();  // runs what was posted
  EXPECT_FALSE(reclaimed.HasHappened());
}

// Attempts wait for a pool thread. Until an attempt runs, its call cannot end, and no further call is reclaimed.
TEST_F(ReclaimTest, PoolIsBusy_NoMoreAreReclaimedThanAreNeeded) {
  std::array<Event, 3> reclaimed;
  std::array<InFlightReservation, 3> reservations;
  for (size_t i = 0; i < reservations.size(); ++i) reservations[i] = Take(30, &reclaimed[i]);
  BusyThread thread(*pool_);
  Event granted;
  in_flight_.Acquire(
      30, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  PassTime(InFlightMemory::kReclaimAfter);
  for (int i = 0; i < 20; ++i) PassTime(InFlightMemory::kReclaimInterval);
  thread.Release();
  reclaimed[0].Wait();
  AwaitPool();
  EXPECT_FALSE(reclaimed[1].HasHappened());
  EXPECT_FALSE(reclaimed[2].HasHappened());
  reservations[0].Release();
  granted.Wait();
}

// As with a stuck connection.
TEST_F(ReclaimTest, ReclaimedButDoesNotEnd_AnotherIsReclaimedAsWell) {
  Event first_reclaimed;
  Event second_reclaimed;
  const InFlightReservation first = Take(50, &first_reclaimed);
  InFlightReservation second = Take(50, &second_reclaimed);
  Event granted;
  in_flight_.Acquire(
      50, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  PassTime(InFlightMemory::kReclaimAfter);
  first_reclaimed.Wait();
  AwaitPool();
  EXPECT_FALSE(second_reclaimed.HasHappened());
  for (int i = 0; i < InFlightMemory::kAttemptsUntilStuck; ++i) {
    PassTime(InFlightMemory::kReclaimInterval);
    AwaitPool();
  }
  EXPECT_TRUE(second_reclaimed.HasHappened());
  second.Release();
  granted.Wait();
}

TEST_F(ReclaimTest, StreamIsRefused_SlowPeerIsReclaimedUntilThereIsRoom) {
  Event first_reclaimed;
  Event second_reclaimed;
  InFlightReservation first = *in_flight_.TryReserveForStream(25);
  InFlightReservation second = *in_flight_.TryReserveForStream(25);
  first.StartDeadline([&] { first_reclaimed.Notify(); });
  second.StartDeadline([&] { second_reclaimed.Notify(); });
  PassTime(10 * InFlightMemory::kReclaimAfter);
  AwaitPool();
  EXPECT_FALSE(first_reclaimed.HasHappened());
  EXPECT_FALSE(in_flight_.TryReserveForStream(10).has_value());
  PassTime(InFlightMemory::kReclaimInterval);
  first_reclaimed.Wait();
  first.Release();
  PassTime(InFlightMemory::kReclaimInterval);
  AwaitPool();
  EXPECT_FALSE(second_reclaimed.HasHappened());
  EXPECT_TRUE(in_flight_.TryReserveForStream(10).has_value());
}

// A call that ends releases its stream memory, which is more than its page.
TEST_F(ReclaimTest, StreamIsRefused_PagesAreSmall_OneCallIsReclaimed) {
  Event first_reclaimed;
  Event second_reclaimed;
  InFlightReservation first = *in_flight_.TryReserveForStream(25);
  const InFlightReservation second = *in_flight_.TryReserveForStream(25);
  InFlightReservation first_page = Take(1, &first_reclaimed);
  const InFlightReservation second_page = Take(1, &second_reclaimed);
  PassTime(10 * InFlightMemory::kReclaimAfter);
  EXPECT_FALSE(in_flight_.TryReserveForStream(25).has_value());
  PassTime(InFlightMemory::kReclaimInterval);
  first_reclaimed.Wait();
  AwaitPool();
  EXPECT_FALSE(second_reclaimed.HasHappened());
  first_page.Release();
  first.Release();
  EXPECT_TRUE(in_flight_.TryReserveForStream(25).has_value());
}

TEST_F(ReclaimTest, StreamsAreRefused_EachRefusalReclaimsOneSlowPeer) {
  std::array<Event, 3> reclaimed;
  std::array<InFlightReservation, 3> streams;
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i] = *in_flight_.TryReserveForStream(16);
    streams[i].StartDeadline([&, i] { reclaimed[i].Notify(); });
  }
  EXPECT_FALSE(in_flight_.TryReserveForStream(16).has_value());
  EXPECT_FALSE(in_flight_.TryReserveForStream(16).has_value());
  PassTime(InFlightMemory::kReclaimAfter);
  AwaitPool();
  EXPECT_TRUE(reclaimed[0].HasHappened());
  EXPECT_TRUE(reclaimed[1].HasHappened());
  EXPECT_FALSE(reclaimed[2].HasHappened());
}

TEST_F(ReclaimTest, StreamWasRefused_ThenGranted_NobodyIsReclaimed) {
  Event reclaimed;
  InFlightReservation first = *in_flight_.TryReserveForStream(25);
  const InFlightReservation second = *in_flight_.TryReserveForStream(25);
  const InFlightReservation page = Take(1, &reclaimed);
  EXPECT_FALSE(in_flight_.TryReserveForStream(20).has_value());
  first.Release();
  const auto granted = in_flight_.TryReserveForStream(20);
  EXPECT_TRUE(granted.has_value());
  PassTime(2 * InFlightMemory::kReclaimAfter);
  AwaitPool();
  EXPECT_FALSE(reclaimed.HasHappened());
}

TEST_F(ReclaimTest, StreamWasRefusedLongAgo_NobodyIsReclaimed) {
  Event reclaimed;
  const InFlightReservation message = Take(100, &reclaimed);
  const auto held = in_flight_.TryReserveForStream(25);
  EXPECT_FALSE(in_flight_.TryReserveForStream(10).has_value());
  PassTime(2 * InFlightMemory::kBoundedWait);
  AwaitPool();
  EXPECT_FALSE(reclaimed.HasHappened());
}

TEST_F(ReclaimTest, StreamWithDeadline_IsReturnedAsStreamMemory) {
  auto held = in_flight_.TryReserveForStream(50);
  held->StartDeadline([] {});
  held->ShrinkTo(0);  // does nothing to stream memory
  EXPECT_EQ(in_flight_.reserved(), 50);
  EXPECT_FALSE(in_flight_.TryReserveForStream(1).has_value());
  held.reset();
  EXPECT_EQ(in_flight_.reserved(), 0);
  EXPECT_TRUE(in_flight_.TryReserveForStream(50).has_value());
}

}  // namespace
}  // namespace sparseagg::service
