// FinishArbiter: which thread finishes a stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "service/grpc/reactors.h"

namespace sparseagg::service {
namespace {

TEST(FinishArbiterTest, Complete_OnlyStep_FinishesAndNoOtherThreadDoes) {
  FinishArbiter arbiter;
  ASSERT_TRUE(arbiter.BeginSteps());
  EXPECT_TRUE(arbiter.Complete(absl::OkStatus()));
  EXPECT_FALSE(arbiter.Complete(absl::OkStatus()));
  EXPECT_FALSE(arbiter.Abort(absl::CancelledError()));
  EXPECT_FALSE(arbiter.BeginSteps());
  EXPECT_FALSE(arbiter.EndStep().has_value());
}

// The other step may be about to start an operation, which must not follow the finish.
TEST(FinishArbiterTest, Complete_WhileAnotherStepRuns_LastStepFinishes) {
  FinishArbiter arbiter;
  ASSERT_TRUE(arbiter.BeginSteps(2));
  EXPECT_FALSE(arbiter.Complete(absl::DataLossError("first")));
  EXPECT_FALSE(arbiter.BeginSteps());
  EXPECT_FALSE(arbiter.Abort(absl::CancelledError()));
  EXPECT_FALSE(arbiter.Complete(absl::OkStatus()));
  EXPECT_FALSE(arbiter.EndStep().has_value());
  EXPECT_EQ(arbiter.EndStep(), absl::DataLossError("first"));
}

TEST(FinishArbiterTest, Abort_BetweenSteps_Finishes) {
  FinishArbiter arbiter;
  ASSERT_TRUE(arbiter.BeginSteps());
  EXPECT_FALSE(arbiter.EndStep().has_value());
  EXPECT_TRUE(arbiter.Abort(absl::CancelledError()));
  EXPECT_FALSE(arbiter.BeginSteps());
}

// A peer that goes on after the abort comes too late: its messages must not be handled in vain.
TEST(FinishArbiterTest, Abort_DuringAStep_NoStepBeginsAfterwards) {
  FinishArbiter arbiter;
  ASSERT_TRUE(arbiter.BeginSteps());
  EXPECT_FALSE(arbiter.Abort(absl::UnavailableError("slow")));
  EXPECT_FALSE(arbiter.BeginSteps());
  EXPECT_EQ(arbiter.EndStep(), absl::UnavailableError("slow"));
}

TEST(FinishArbiterTest, Abort_DuringAStep_StepMayStillComplete) {
  FinishArbiter aborted;
  ASSERT_TRUE(aborted.BeginSteps());
  EXPECT_FALSE(aborted.Abort(absl::CancelledError("late")));
  EXPECT_EQ(aborted.EndStep(), absl::CancelledError("late"));
  FinishArbiter completed;
  ASSERT_TRUE(completed.BeginSteps());
  EXPECT_FALSE(completed.Abort(absl::CancelledError("late")));
  EXPECT_TRUE(completed.Complete(absl::OkStatus()));
  EXPECT_FALSE(completed.EndStep().has_value());
}

}  // namespace
}  // namespace sparseagg::service
