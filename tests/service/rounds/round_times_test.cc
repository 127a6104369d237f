#include <gtest/gtest.h>

#include "service/rounds/round_life.h"

namespace sparseagg::service {
namespace {

Moment At(int seconds) { return {absl::UnixEpoch() + absl::Seconds(seconds), absl::Seconds(seconds)}; }

TEST(RoundTimesTest, TryStartFinish_OnceClosedAndNoCommitRuns) {
  RoundLife life(At(1).wall, At(1).monotonic);
  life.BeginCommit();
  life.BeginCommit();
  EXPECT_FALSE(life.EndCommit());  // the round is open
  life.Close(At(2));
  EXPECT_FALSE(life.TryStartFinish());
  EXPECT_TRUE(life.EndCommit());
  EXPECT_TRUE(life.TryStartFinish());
  EXPECT_FALSE(life.TryStartFinish());
}

TEST(RoundTimesTest, End_SetsTimesOnce) {
  RoundLife life(At(1).wall, At(1).monotonic);
  life.Close(At(3));
  const absl::Duration time_to_expiry = life.TimeToExpiry(absl::Seconds(10), At(7));
  EXPECT_EQ(time_to_expiry, absl::Seconds(10));
  EXPECT_EQ(life.End(RoundState::kDone, absl::OkStatus(), "", time_to_expiry, At(7)), absl::Seconds(4));
  RoundSnapshot snapshot;
  life.Fill(snapshot, At(100).monotonic);
  EXPECT_EQ(snapshot.state, RoundState::kDone);
  EXPECT_EQ(snapshot.close_time, At(3).wall);
  EXPECT_EQ(snapshot.end_time, At(7).wall);
  EXPECT_EQ(snapshot.expire_time, At(17).wall);
  EXPECT_EQ(snapshot.timeline.open, absl::Seconds(2));
  EXPECT_EQ(snapshot.timeline.finish, absl::Seconds(4));
}

TEST(RoundTimesTest, End_TimeOfDaySetBack_NotBeforeTheClose) {
  RoundLife life(At(1).wall, At(1).monotonic);
  life.Close(At(5));
  const Moment now = {At(2).wall, At(6).monotonic};
  const absl::Duration time_to_expiry = life.TimeToExpiry(absl::Seconds(10), now);
  life.End(RoundState::kFailed, absl::InternalError("no"), "no", time_to_expiry, now);
  EXPECT_EQ(life.Record().end_time, At(5).wall);
  EXPECT_EQ(life.Record().name, StateRecord::Name::kFailed);
}

TEST(RoundTimesTest, RestoredEnd_LeavesTheRestOfItsTimeWhateverTheClockSays) {
  RoundLife life(At(1).wall, At(1).monotonic);
  life.RestoreEndTime(At(2).wall, absl::Seconds(3));
  EXPECT_EQ(life.TimeToExpiry(absl::Seconds(10), At(5)), absl::Seconds(7));
  EXPECT_EQ(life.TimeToExpiry(absl::Seconds(10), At(10'000)), absl::Seconds(7));
}

}  // namespace
}  // namespace sparseagg::service
