// Rounds that are sealed: submissions are frozen, and merged later.
#include <atomic>
#include <string>
#include <utility>

#include "tests/service/support/on_threads.h"
#include "tests/service/support/submissions_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class RoundSealTest : public SubmissionsFixture {};

// A round of a cluster whose ranges are put.
class RoundRangesTest : public RoundSealTest {
 protected:
  std::shared_ptr<Round> OpenSealed(const std::string& id = "r") {
    v1::RoundSpec spec = SumSpec();
    spec.mutable_cluster()->add_servers()->set_address("a:1");
    auto round = Open(spec, id);
    EXPECT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
    EXPECT_THAT(round->Seal(), IsOk());
    return round;
  }
  static absl::Status Put(Round& round, const RangeRecord& range, std::string page = "rows") {
    return round.PutRange(round.create_time(), range, std::move(page));
  }
  static absl::Status PutList(Round& round, const std::string& only = "", const std::string& plan = "p") {
    return Put(round, {only, plan, ""}, "list");
  }
  static std::string PageOf(const Round& round, const std::string& tensor, uint64_t begin) {
    const auto page = round.ranges().Find(tensor, begin);
    return page.ok() ? **page : page.status().ToString();
  }
};

TEST_F(RoundRangesTest, PutRange_BadInput_ChangesNothing) {
  const auto round = OpenSealed();
  ASSERT_THAT(Put(*round, {"", "p", "w", 10, 20}), IsOk());
  const uint64_t reserved = round->budget().reserved();
  EXPECT_THAT(round->PutRange(round->create_time() - absl::Seconds(1), {"", "p", "w", 0, 10}, "rows"),
              Fails(Code::kFailedPrecondition, HasSubstr("was created at")));
  for (const auto& [begin, end] : {std::pair(0, 11), std::pair(19, 0), std::pair(12, 13), std::pair(0, 0)}) {
    EXPECT_THAT(Put(*round, {"", "p", "w", static_cast<uint64_t>(begin), static_cast<uint64_t>(end)}),
                Fails(Code::kInvalidArgument, HasSubstr("overlaps the range [10, 20) of tensor 'w'")));
  }
  EXPECT_THAT(Put(*round, {"", "p", "w", 10, 20}, "other"), Fails(Code::kAlreadyExists, HasSubstr("other rows")));
  EXPECT_EQ(round->budget().reserved(), reserved);
  ASSERT_THAT(PutList(*round), IsOk());
  EXPECT_THAT(Put(*round, {"", "p", "w", 0, 10}), Fails(Code::kFailedPrecondition, HasSubstr("without the range")));
  EXPECT_THAT(Put(*round, {"", "q", "w", 0, 10}), Fails(Code::kFailedPrecondition, HasSubstr("into other ranges")));
  EXPECT_THAT(PutList(*round, "some"), Fails(Code::kFailedPrecondition, HasSubstr("of other clients")));
  EXPECT_EQ(round->budget().reserved(), reserved + ResultRanges::MemoryBytes({"", "p", ""}, "list"));

  const auto alone = Open(SumSpec(), "alone");
  ASSERT_THAT(alone->Seal(), IsOk());
  EXPECT_THAT(Put(*alone, {"", "p", "w", 0, 10}),
              Fails(Code::kFailedPrecondition, HasSubstr("only a round of a cluster")));
  const auto cancelled = OpenSealed("cancelled");
  ASSERT_THAT(Put(*cancelled, {"", "p", "w", 10, 20}), IsOk());
  ASSERT_THAT(cancelled->Cancel("stop"), IsOk());
  EXPECT_THAT(Put(*cancelled, {"", "p", "w", 0, 10}), Fails(Code::kFailedPrecondition, HasSubstr("is CANCELLED")));
  EXPECT_THAT(cancelled->ranges().Find("w", 10), HasCode(Code::kNotFound));
}

TEST_F(RoundRangesTest, PutRange_EndWithoutAList_LeavesTheRoundToALaterOne) {
  const auto round = OpenSealed();
  ASSERT_THAT(Put(*round, {}, ""), IsOk());
  EXPECT_EQ(round->state(), RoundState::kDone);
  EXPECT_THAT(round->ranges().Find("", 0), HasCode(Code::kNotFound));
  EXPECT_THAT(Put(*round, {"", "p", "w", 0, 0}), IsOk());
  EXPECT_THAT(PutList(*round), IsOk());
  EXPECT_EQ(PageOf(*round, "w", 0), "rows");
}

// A commit that adds its submission counts, and the seal waits for it. One that comes later is refused.
TEST_F(RoundSealTest, Seal_WaitsForACommitThatAdds) {
  num_threads_ = 4;
  Hold adding;
  hooks_.add = adding.Hook();
  const auto round = Open(SumSpec());
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {7}, {1})), IsOk());
  Event answered;
  absl::StatusOr<Receipt> receipt = absl::UnknownError("");
  context().pool.Post([&] {
    round->intake().CommitNamed("a", "a-1", "", [&](absl::StatusOr<Receipt> answer) {
      receipt = std::move(answer);
      answered.Notify();
    });
  });
  adding.Wait();
  Event sealed;
  context().pool.Post([&] {
    EXPECT_THAT(round->Seal(), IsOk());
    sealed.Notify();
  });
  EXPECT_EQ(round->state(), RoundState::kOpen);
  adding.Release();
  sealed.Wait();
  answered.Wait();
  EXPECT_THAT(receipt, IsOk());
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a"));
}

// Whoever has a receipt when the round is sealed counts, and nobody else.
TEST_F(RoundSealTest, Seal_AmidSubmissions_CountsTheReceipts) {
  num_threads_ = 4;
  for (int i = 0; i < 20; ++i) {
    const auto round = Open(SumSpec(), std::to_string(i));
    std::atomic<int> receipts = 0;
    uint64_t frozen = 0;
    OnThreads(5, [&](int thread) {
      if (thread == 0) {
        EXPECT_THAT(round->Seal(), IsOk());
        frozen = round->Snapshot().num_submissions;
        return;
      }
      for (int k = 0; k < 20; ++k) {
        if (Submit(*round, absl::StrCat(thread, "-", k), {7}, {1}).ok()) ++receipts;
      }
    });
    EXPECT_EQ(frozen, receipts);
    EXPECT_EQ(ClientsOf(*round).size(), frozen);
    EXPECT_THAT(round->Close(), IsOk());
    AwaitEnd(*round);
  }
}

}  // namespace
}  // namespace sparseagg::service
