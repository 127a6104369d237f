// Who finishes a stream.
#include "service/rpc/call_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sparseagg::service {
namespace {

TEST(FinishGateTest, Conclude_OnlyStep_FinishesAndNobodyElseDoes) {
  FinishGate gate;
  ASSERT_TRUE(gate.Begin());
  EXPECT_TRUE(gate.Conclude(absl::OkStatus()));
  EXPECT_FALSE(gate.Conclude(absl::OkStatus()));
  EXPECT_FALSE(gate.Interrupt(absl::CancelledError()));
  EXPECT_FALSE(gate.Begin());
  EXPECT_FALSE(gate.End().has_value());
}

// The other step may be about to start an operation, which must not follow the finish.
TEST(FinishGateTest, Conclude_BesideAnotherStep_IsLeftToTheLastOne) {
  FinishGate gate;
  ASSERT_TRUE(gate.Begin(2));
  EXPECT_FALSE(gate.Conclude(absl::DataLossError("first")));
  EXPECT_FALSE(gate.Begin());
  EXPECT_FALSE(gate.Interrupt(absl::CancelledError()));
  EXPECT_FALSE(gate.Conclude(absl::OkStatus()));
  EXPECT_FALSE(gate.End().has_value());
  EXPECT_EQ(gate.End(), absl::DataLossError("first"));
}

TEST(FinishGateTest, Interrupt_BetweenSteps_Finishes) {
  FinishGate gate;
  ASSERT_TRUE(gate.Begin());
  EXPECT_FALSE(gate.End().has_value());
  EXPECT_TRUE(gate.Interrupt(absl::CancelledError()));
  EXPECT_FALSE(gate.Begin());
}

// A peer that moves after all comes too late: it must not do all for nothing until a later step ends.
TEST(FinishGateTest, Interrupt_DuringAStep_IsTheLastToBegin) {
  FinishGate gate;
  ASSERT_TRUE(gate.Begin());
  EXPECT_FALSE(gate.Interrupt(absl::UnavailableError("slow")));
  EXPECT_FALSE(gate.Begin());
  EXPECT_EQ(gate.End(), absl::UnavailableError("slow"));
}

TEST(FinishGateTest, Interrupt_DuringAStep_IsLeftToItUnlessItHasAnEndOfItsOwn) {
  FinishGate interrupted;
  ASSERT_TRUE(interrupted.Begin());
  EXPECT_FALSE(interrupted.Interrupt(absl::CancelledError("late")));
  EXPECT_EQ(interrupted.End(), absl::CancelledError("late"));
  FinishGate concluded;
  ASSERT_TRUE(concluded.Begin());
  EXPECT_FALSE(concluded.Interrupt(absl::CancelledError("late")));
  EXPECT_TRUE(concluded.Conclude(absl::OkStatus()));
  EXPECT_FALSE(concluded.End().has_value());
}

}  // namespace
}  // namespace sparseagg::service
