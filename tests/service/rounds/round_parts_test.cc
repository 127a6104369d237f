// Parts of a round by themselves: the times of its life, the refusals that it tells, and tokens of pages of its result.
#include "absl/strings/str_cat.h"
#include "service/rounds/intake.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/round_life.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;

Moment At(int seconds) { return {absl::UnixEpoch() + absl::Seconds(seconds), absl::Seconds(seconds)}; }

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

class RecentRefusalsTest : public RoundFixture {
 protected:
  const absl::Time now_ = clock_.WallTime();
  MemoryBudget budget_{1 << 20};
  RecentRefusals refusals_{&budget_};
};

TEST_F(RecentRefusalsTest, Add_MoreThanTheList_KeepsTheLatest) {
  for (int i = 0; i < 50; ++i) {
    refusals_.Add(absl::StrCat("client", i), absl::InvalidArgumentError("bad"), now_ + absl::Seconds(i));
  }
  ASSERT_THAT(refusals_.list(), SizeIs(RecentRefusals::kMaxRefusals));
  EXPECT_EQ(refusals_.list().front().client_id, "client30");
  EXPECT_EQ(refusals_.list().back().client_id, "client49");
  EXPECT_EQ(refusals_.list().back().time, now_ + absl::Seconds(49));
  EXPECT_EQ(budget_.reserved(), RecentRefusals::kListBytes);
}

TEST_F(RecentRefusalsTest, Add_LongReason_IsCutBetweenCharacters) {
  refusals_.Add("a", absl::InvalidArgumentError(absl::StrCat("x", std::string(400, 'y'))), now_);
  EXPECT_EQ(refusals_.list().back().reason.size(), RecentRefusals::kMaxReasonBytes);
  std::string umlauts = "x";
  for (int i = 0; i < 300; ++i) umlauts += "\u00e4";
  refusals_.Add("a", absl::InvalidArgumentError(umlauts), now_);
  EXPECT_EQ(refusals_.list().back().reason, umlauts.substr(0, RecentRefusals::kMaxReasonBytes - 1));
}

TEST_F(RecentRefusalsTest, Add_WithoutMemory_KeepsNothing) {
  MemoryBudget small(100);
  RecentRefusals refusals(&small);
  refusals.Add("a", absl::InvalidArgumentError("bad"), now_);
  EXPECT_THAT(refusals.list(), IsEmpty());
}

constexpr absl::Time kCreated = absl::FromUnixSeconds(1);

TEST(ResultPagesTest, ResumeAt_ForeignToken_IsRefused) {
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 17), kCreated, 2, {10, 20}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 9), kCreated, 3, {10, 20}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 21), kCreated, 3, {10, 20}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 17), kCreated + absl::Nanoseconds(1), 3, {10, 20}),
              HasCode(Code::kInvalidArgument));
  for (const char* token : {"", "3", "3.17", "1000000000.3", "1000000000.3.", "1000000000..17", ".3.17",
                            "1000000000.3.17.1", "1000000000.-3.17", "x", "1000000000.3.99999999999999999999"}) {
    EXPECT_THAT(ResumeAt(token, kCreated, 3, {10, 20}), Fails(Code::kInvalidArgument, HasSubstr("page_token")))
        << token;
  }
}

}  // namespace
}  // namespace sparseagg::service
