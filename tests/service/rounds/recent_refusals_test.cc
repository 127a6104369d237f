// What a round tells of the submissions that it has refused.
#include "absl/strings/str_cat.h"
#include "service/rounds/intake.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;

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

TEST_F(RecentRefusalsTest, RefusedSubmission_OfARound_IsListed) {
  const auto round = Open(SumSpec(10));
  EXPECT_THAT(Submit(*round, "a", {10}, {1}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(Put(*round, MakeChunk("", "b", {1}, {1}, 0, false)), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  AwaitEnd(*round);
  RunPendingTasks();
  const std::vector<Refusal> listed = round->Snapshot().recent_refusals;
  ASSERT_THAT(listed, SizeIs(2));
  EXPECT_EQ(listed[0].client_id, "a");
  EXPECT_EQ(listed[0].code, Code::kInvalidArgument);
  EXPECT_THAT(listed[0].reason, HasSubstr("10"));
  EXPECT_EQ(listed[0].time, now_);
  EXPECT_EQ(listed[1].client_id, "b");
  EXPECT_EQ(listed[1].code, Code::kFailedPrecondition);
}

}  // namespace
}  // namespace sparseagg::service
