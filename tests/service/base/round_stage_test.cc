#include "service/base/round_stage.h"

#include <gtest/gtest.h>

namespace sparseagg::service {
namespace {

const StageTime& Of(const StageTimes& times, RoundStage stage) { return times[static_cast<size_t>(stage)]; }

TEST(StageTest, Add_SeveralTimes_SumsEachStageByItself) {
  StageTotals clock;
  clock.Add(RoundStage::kDecode, absl::Microseconds(5), absl::Microseconds(1), 10);
  clock.Add(RoundStage::kDecode, absl::Microseconds(7), absl::ZeroDuration(), 20);
  clock.Add(RoundStage::kMerge, absl::ZeroDuration(), absl::Milliseconds(3), 0);
  const StageTimes times = clock.Read();
  EXPECT_EQ(Of(times, RoundStage::kDecode).busy, absl::Microseconds(12));
  EXPECT_EQ(Of(times, RoundStage::kDecode).wait, absl::Microseconds(1));
  EXPECT_EQ(Of(times, RoundStage::kDecode).bytes, 30);
  EXPECT_EQ(Of(times, RoundStage::kMerge).wait, absl::Milliseconds(3));
  EXPECT_EQ(Of(times, RoundStage::kPrepare).busy, absl::ZeroDuration());
}

TEST(StageTest, Longest_WaitingCounts_AndTheFirstOfEquals) {
  StageTotals clock;
  EXPECT_EQ(LongestStage(clock.Read()), RoundStage::kReceive);
  clock.Add(RoundStage::kEncode, absl::Seconds(2), absl::ZeroDuration(), 0);
  clock.Add(RoundStage::kMerge, absl::Seconds(1), absl::Seconds(1), 0);
  EXPECT_EQ(LongestStage(clock.Read()), RoundStage::kMerge);
  clock.Add(RoundStage::kEncode, absl::ZeroDuration(), absl::Nanoseconds(1), 0);
  EXPECT_EQ(LongestStage(clock.Read()), RoundStage::kEncode);
}

TEST(StageTest, Name_EveryStage_HasItsOwn) {
  std::string names;
  for (const RoundStage stage : kAllStages) names += std::string(Name(stage)) + " ";
  EXPECT_EQ(names, "receive decode prepare merge encode ");
}

}  // namespace
}  // namespace sparseagg::service
