#include "service/stage.h"

#include <gtest/gtest.h>

namespace sparseagg::service {
namespace {

const StageTime& Of(const StageTimes& times, Stage stage) { return times[static_cast<size_t>(stage)]; }

TEST(StageTest, Add_SeveralTimes_SumsEachStageByItself) {
  StageClock clock;
  clock.Add(Stage::kDecode, absl::Microseconds(5), absl::Microseconds(1), 10);
  clock.Add(Stage::kDecode, absl::Microseconds(7), absl::ZeroDuration(), 20);
  clock.Add(Stage::kMerge, absl::ZeroDuration(), absl::Milliseconds(3), 0);
  const StageTimes times = clock.Read();
  EXPECT_EQ(Of(times, Stage::kDecode).busy, absl::Microseconds(12));
  EXPECT_EQ(Of(times, Stage::kDecode).wait, absl::Microseconds(1));
  EXPECT_EQ(Of(times, Stage::kDecode).bytes, 30);
  EXPECT_EQ(Of(times, Stage::kMerge).wait, absl::Milliseconds(3));
  EXPECT_EQ(Of(times, Stage::kPrepare).busy, absl::ZeroDuration());
}

TEST(StageTest, Longest_WaitingCounts_AndTheFirstOfEquals) {
  StageClock clock;
  EXPECT_EQ(Longest(clock.Read()), Stage::kReceive);
  clock.Add(Stage::kEncode, absl::Seconds(2), absl::ZeroDuration(), 0);
  clock.Add(Stage::kMerge, absl::Seconds(1), absl::Seconds(1), 0);
  EXPECT_EQ(Longest(clock.Read()), Stage::kMerge);
  clock.Add(Stage::kEncode, absl::ZeroDuration(), absl::Nanoseconds(1), 0);
  EXPECT_EQ(Longest(clock.Read()), Stage::kEncode);
}

TEST(StageTest, Name_EveryStage_HasItsOwn) {
  std::string names;
  for (const Stage stage : kAllStages) names += std::string(Name(stage)) + " ";
  EXPECT_EQ(names, "receive decode prepare merge encode ");
}

}  // namespace
}  // namespace sparseagg::service
