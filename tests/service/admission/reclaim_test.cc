// Peers that are slow while others wait for what they have in transit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "tests/service/support/busy_thread.h"
#include "tests/service/support/in_flight_memory_fixture.h"

namespace sparseagg::service {
namespace {

class CallInTest : public InFlightMemoryTest {
 protected:
  // Until the pool has done what it was told to before.
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

// The pool's one thread is busy for longer than a peer may take: a peer is not to blame for that.
TEST_F(CallInTest, GrantedButNoThread_TheTimeDoesNotRun) {
  InFlightReservation all = Take(100);
  BusyThread thread(*pool_);
  Event granted;
  Event called_in;
  InFlightReservation kept;
  in_flight_.Acquire(
      100,
      [&](InFlightReservation credit) {
        kept = std::move(credit);
        granted.Notify();
      },
      [&] { called_in.Notify(); });
  Event other;
  in_flight_.Acquire(
      50, [&](const InFlightReservation&) { other.Notify(); }, [] {});
  all.Release();
  clock_.Advance(10 * InFlightMemory::kReclaimAfter, timer_);
  thread.Release();
  granted.Wait();
  EXPECT_FALSE(called_in.HasHappened());
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);  // now it is
  called_in.Wait();
  kept.Release();
  other.Wait();
}

// The pool has been told to call in a peer, and comes to it when that has done its part.
TEST_F(CallInTest, SlowPeer_DoesItsPartBeforeTheCall_IsNotCalledIn) {
  Event called_in;
  InFlightReservation credit = Take(100, &called_in);
  BusyThread thread(*pool_);
  Event granted;
  in_flight_.Acquire(
      100, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);
  clock_.AwaitDue(timer_);
  credit.ShrinkTo(0);
  thread.Release();
  granted.Wait();  // the pool's thread has passed the call
  EXPECT_FALSE(called_in.HasHappened());
}

// Nobody is called in when the second ones get credit, and they are slow, too.
TEST_F(CallInTest, SlowPeersThatHadToWait_AreCalledInForThoseBehindThem) {
  Event first_called;
  InFlightReservation first = Take(100, &first_called);
  Event second_granted;
  Event second_called;
  InFlightReservation second;
  in_flight_.Acquire(
      100,
      [&](InFlightReservation credit) {
        second = std::move(credit);
        second_granted.Notify();
      },
      [&] { second_called.Notify(); });
  Event third;
  in_flight_.Acquire(
      100, [&](const InFlightReservation&) { third.Notify(); }, [] {});
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);
  first_called.Wait();
  first.Release();
  second_granted.Wait();
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);
  second_called.Wait();
  second.Release();
  third.Wait();
}

TEST_F(CallInTest, SlowPeers_OthersWait_OnlyAsManyAreCalledInAsAreNeeded) {
  Event first_called;
  Event second_called;
  Event third_called;
  InFlightReservation first = Take(30, &first_called);
  InFlightReservation second = Take(30, &second_called);
  InFlightReservation third = Take(30, &third_called);
  first.ShrinkTo(30);  // its peer has done its part
  clock_.Advance(10 * InFlightMemory::kReclaimAfter, timer_);
  Event granted;
  in_flight_.Acquire(
      40, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  clock_.Advance(InFlightMemory::kReclaimAfter, timer_);
  second_called.Wait();
  third_called.Wait();  // 10 are free, 30 are not enough
  EXPECT_FALSE(first_called.HasHappened());
  EXPECT_FALSE(granted.HasHappened());
  second.Release();
  granted.Wait();
}

TEST_F(CallInTest, CalledIn_ButNotGivenBack_IsCalledInAgainWhileOthersWait) {
  std::atomic<int> calls = 0;
  const auto await_calls = [&](int count) {
    while (calls != count) std::this_thread::yield();
    Event passed;  // the pool's thread has passed the last call
    pool_->Post([&] { passed.Notify(); });
    passed.Wait();
  };
  InFlightReservation taken;
  in_flight_.Acquire(
      100, [&](InFlightReservation credit) { taken = std::move(credit); }, [&] { ++calls; });
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
  first.Wait();  // has given up
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

TEST_F(CallInTest, SlowPeer_NobodyWaits_HasAllTheTime) {
  Event called_in;
  const InFlightReservation credit = Take(100, &called_in);
  clock_.Advance(absl::Hours(1), timer_);
  pool_.reset();  // runs what was posted
  EXPECT_FALSE(called_in.HasHappened());
}

// The pool comes to those called in when it has a thread: they have not been asked to end before.
TEST_F(CallInTest, PoolIsBusy_NoMoreAreCalledInThanAreNeeded) {
  std::array<Event, 3> called_in;
  std::array<InFlightReservation, 3> credits;
  for (size_t i = 0; i < credits.size(); ++i) credits[i] = Take(30, &called_in[i]);
  BusyThread thread(*pool_);
  Event granted;
  in_flight_.Acquire(
      30, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  PassTime(InFlightMemory::kReclaimAfter);
  for (int i = 0; i < 20; ++i) PassTime(InFlightMemory::kReclaimInterval);
  thread.Release();
  called_in[0].Wait();
  AwaitPool();
  EXPECT_FALSE(called_in[1].HasHappened());
  EXPECT_FALSE(called_in[2].HasHappened());
  credits[0].Release();
  granted.Wait();
}

// Its connection is stuck, say.
TEST_F(CallInTest, CalledInButDoesNotEnd_AnotherIsCalledInBesides) {
  Event first_called;
  Event second_called;
  const InFlightReservation first = Take(50, &first_called);
  InFlightReservation second = Take(50, &second_called);
  Event granted;
  in_flight_.Acquire(
      50, [&](const InFlightReservation&) { granted.Notify(); }, [] {});
  PassTime(InFlightMemory::kReclaimAfter);
  first_called.Wait();
  AwaitPool();
  EXPECT_FALSE(second_called.HasHappened());
  for (int i = 0; i < InFlightMemory::kMaxReclaimAttempts; ++i) {
    PassTime(InFlightMemory::kReclaimInterval);
    AwaitPool();
  }
  EXPECT_TRUE(second_called.HasHappened());
  second.Release();
  granted.Wait();
}

TEST_F(CallInTest, HoldIsRefused_SlowPeerIsCalledInUntilThereIsRoom) {
  Event first_called;
  Event second_called;
  InFlightReservation first = *in_flight_.TryReserveForStream(25);
  InFlightReservation second = *in_flight_.TryReserveForStream(25);
  first.StartDeadline([&] { first_called.Notify(); });
  second.StartDeadline([&] { second_called.Notify(); });
  PassTime(10 * InFlightMemory::kReclaimAfter);
  AwaitPool();
  EXPECT_FALSE(first_called.HasHappened());
  EXPECT_FALSE(in_flight_.TryReserveForStream(10).has_value());
  PassTime(InFlightMemory::kReclaimInterval);
  first_called.Wait();
  first.Release();
  PassTime(InFlightMemory::kReclaimInterval);
  AwaitPool();
  EXPECT_FALSE(second_called.HasHappened());
  EXPECT_TRUE(in_flight_.TryReserveForStream(10).has_value());
}

// A call gives back more than its page when it ends.
TEST_F(CallInTest, HoldIsRefused_PagesAreSmall_NoMoreCallsThanNeededAreCalledIn) {
  Event first_called;
  Event second_called;
  InFlightReservation first = *in_flight_.TryReserveForStream(25);
  const InFlightReservation second = *in_flight_.TryReserveForStream(25);
  InFlightReservation first_page = Take(1, &first_called);
  const InFlightReservation second_page = Take(1, &second_called);
  PassTime(10 * InFlightMemory::kReclaimAfter);
  EXPECT_FALSE(in_flight_.TryReserveForStream(25).has_value());
  PassTime(InFlightMemory::kReclaimInterval);
  first_called.Wait();
  AwaitPool();
  EXPECT_FALSE(second_called.HasHappened());
  first_page.Release();
  first.Release();
  EXPECT_TRUE(in_flight_.TryReserveForStream(25).has_value());
}

TEST_F(CallInTest, HoldWasRefused_ThenGranted_WaitsNoMore) {
  Event called_in;
  InFlightReservation first = *in_flight_.TryReserveForStream(25);
  const InFlightReservation second = *in_flight_.TryReserveForStream(25);
  const InFlightReservation page = Take(1, &called_in);
  EXPECT_FALSE(in_flight_.TryReserveForStream(20).has_value());
  first.Release();
  const auto granted = in_flight_.TryReserveForStream(20);
  EXPECT_TRUE(granted.has_value());
  PassTime(2 * InFlightMemory::kReclaimAfter);
  AwaitPool();
  EXPECT_FALSE(called_in.HasHappened());
}

TEST_F(CallInTest, HoldWasRefusedLongAgo_NobodyIsCalledIn) {
  Event called_in;
  const InFlightReservation message = Take(100, &called_in);
  const auto held = in_flight_.TryReserveForStream(25);
  EXPECT_FALSE(in_flight_.TryReserveForStream(10).has_value());
  PassTime(2 * InFlightMemory::kBoundedWait);
  AwaitPool();
  EXPECT_FALSE(called_in.HasHappened());
}

TEST_F(CallInTest, WatchedThatWasHeld_IsGivenBackAsHeld) {
  auto held = in_flight_.TryReserveForStream(50);
  held->StartDeadline([] {});
  held->ShrinkTo(0);  // changes nothing
  EXPECT_EQ(in_flight_.reserved(), 50);
  EXPECT_FALSE(in_flight_.TryReserveForStream(1).has_value());
  held.reset();
  EXPECT_EQ(in_flight_.reserved(), 0);
  EXPECT_TRUE(in_flight_.TryReserveForStream(50).has_value());
}

}  // namespace
}  // namespace sparseagg::service
