#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "service/rounds/round_life.h"
#include "tests/service/support/event.h"
#include "tests/service/support/manual_clock.h"

namespace sparseagg::service {
namespace {

class RoundWaitsTest : public ::testing::Test {
 protected:
  // Returns: the wait's id. `calls_` counts its `done`.
  RoundWaits::Id Add(absl::Duration timeout) {
    return waits_->Add(
        timeout, [this] { ++calls_; }, waits_);
  }

  std::atomic<int> calls_{0};
  ManualClock clock_;
  Timer timer_{&clock_};
  std::shared_ptr<RoundWaits> waits_ = std::make_shared<RoundWaits>(clock_, timer_);
};

TEST_F(RoundWaitsTest, End_ReleasesWaitsAndAllLaterOnes) {
  Add(absl::Seconds(1));
  Add(absl::InfiniteDuration());
  waits_->End();
  EXPECT_EQ(calls_, 2);
  Add(absl::Seconds(1));
  EXPECT_EQ(calls_, 3);
  clock_.Advance(absl::Seconds(2), timer_);
  clock_.AwaitDue(timer_);
  EXPECT_EQ(calls_, 3);
}

TEST_F(RoundWaitsTest, Release_LaterWaitsWait) {
  Add(absl::InfiniteDuration());
  waits_->Release();
  EXPECT_EQ(calls_, 1);
  EXPECT_TRUE(waits_->Remove(Add(absl::InfiniteDuration())));
  EXPECT_EQ(calls_, 1);
}

TEST_F(RoundWaitsTest, Timeout_EndsOneWaitOnce) {
  const RoundWaits::Id first = Add(absl::Seconds(1));
  const RoundWaits::Id second = Add(absl::Seconds(3));
  clock_.Advance(absl::Seconds(2), timer_);
  clock_.AwaitDue(timer_);
  EXPECT_EQ(calls_, 1);
  EXPECT_FALSE(waits_->Remove(first));
  EXPECT_TRUE(waits_->Remove(second));
  EXPECT_FALSE(waits_->Remove(second));
}

TEST_F(RoundWaitsTest, OwnerIsGone_TimeoutDoesNothing) {
  Add(absl::Seconds(1));
  waits_.reset();
  clock_.Advance(absl::Seconds(2), timer_);
  clock_.AwaitDue(timer_);
  EXPECT_EQ(calls_, 0);
}

}  // namespace
}  // namespace sparseagg::service
