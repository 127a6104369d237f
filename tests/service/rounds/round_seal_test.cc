// Rounds that are sealed: submissions are frozen, and merged later.
#include <string>

#include "tests/service/support/busy_thread.h"
#include "tests/service/support/on_threads.h"
#include "tests/service/support/submissions_fixture.h"
#include "tests/support/failing_allocation.h"

namespace sparseagg::service {
namespace {

using sparseagg::testing::FailingAllocation;
using sparseagg::testing::Try;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class RoundSealTest : public SubmissionsFixture {
 protected:
  std::shared_ptr<Round> OpenWith(const std::vector<std::string>& clients, const v1::RoundSpec& spec = SumSpec()) {
    auto round = Open(spec);
    for (const std::string& client : clients) EXPECT_THAT(Submit(*round, client, {7}, {1}), IsOk());
    return round;
  }
};

TEST_F(RoundSealTest, Seal_TakesNoSubmissionAndGivesNoneBack) {
  const auto round = OpenWith({"a", "b"});
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_EQ(round->state(), RoundState::kSealed);
  EXPECT_THAT(Submit(*round, "c", {7}, {1}), Fails(Code::kFailedPrecondition, "the round is SEALED"));
  EXPECT_THAT(round->Withdraw("a", ""), Fails(Code::kFailedPrecondition, "the round is SEALED"));
  EXPECT_THAT(round->GetResults(), Fails(Code::kFailedPrecondition, HasSubstr("SEALED")));
  EXPECT_THAT(ClientsOf(*round), ElementsAre("a", "b"));
  const RoundSnapshot snapshot = round->Snapshot();
  EXPECT_EQ(snapshot.num_submissions, 2);
  EXPECT_EQ(snapshot.num_refused, 1);
  EXPECT_EQ(snapshot.results, nullptr);
  EXPECT_THAT(round->Seal(), IsOk()) << "a repetition";
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 2)));
  EXPECT_EQ(round->state(), RoundState::kDone);
}

TEST_F(RoundSealTest, Seal_RetryOfWhatCounts_GetsItsReceipt) {
  const auto round = OpenWith({"a"});
  ASSERT_THAT(Put(*round, MakeChunk("", "a", {7}, {1}, 0, false)), IsOk());  // a retry under way, in other chunks
  ASSERT_THAT(Put(*round, MakeChunk("", "late", {7}, {1})), IsOk());
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_EQ(round->Snapshot().num_uploads, 1) << "that of 'late' is discarded";
  auto again = CommitNamed(*round, "a", "a-1");
  ASSERT_THAT(again, IsOk());
  EXPECT_TRUE(again->duplicate);
  again = Submit(*round, "a", {7}, {1});
  ASSERT_THAT(again, IsOk());
  EXPECT_TRUE(again->duplicate);
  EXPECT_THAT(Submit(*round, "a", {7}, {2}), HasCode(Code::kAlreadyExists));
  EXPECT_THAT(CommitNamed(*round, "late", "late-1"), HasCode(Code::kFailedPrecondition));
}

TEST_F(RoundSealTest, Seal_AfterTheClose_IsRefused) {
  const auto done = OpenWith({"a"});
  EXPECT_THAT(done->Close(), IsOk());
  AwaitEnd(*done);
  EXPECT_THAT(done->Seal(), Fails(Code::kFailedPrecondition, "the round is DONE"));
  const auto cancelled = Open(SumSpec(), "cancelled");
  ASSERT_THAT(cancelled->Cancel("stop"), IsOk());
  EXPECT_THAT(cancelled->Seal(), Fails(Code::kFailedPrecondition, "the round is CANCELLED: stop"));
  v1::RoundSpec full = SumSpec();
  full.set_max_submissions(1);
  const auto closed_itself = Open(full, "full");
  ASSERT_THAT(Submit(*closed_itself, "a", {7}, {1}), IsOk());
  EXPECT_THAT(closed_itself->Seal(), HasCode(Code::kFailedPrecondition));
}

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

TEST_F(RoundRangesTest, PutRange_ThenTheList_EndsTheRoundAndIsRead) {
  const auto round = OpenSealed();
  EXPECT_THAT(Put(*round, {"", "p", "w", 0, 10}), IsOk());
  EXPECT_THAT(Put(*round, {"", "p", "w", 10, 0}, "more"), IsOk());
  EXPECT_THAT(Put(*round, {"", "p", "w", 0, 10}), IsOk()) << "a repetition";
  EXPECT_THAT(Put(*round, {"some", "q", "w", 0, 20}, "of a coordinator that died"), IsOk());
  EXPECT_THAT(round->ranges().Find("w", 0), Fails(Code::kNotFound, HasSubstr("no ranges")));
  EXPECT_EQ(round->state(), RoundState::kSealed);
  const uint64_t reserved = round->budget().reserved();
  EXPECT_THAT(PutList(*round), IsOk());
  EXPECT_LT(round->budget().reserved(), reserved) << "the other result is dropped";
  EXPECT_EQ(round->state(), RoundState::kDone);
  EXPECT_THAT(PutList(*round), IsOk()) << "a repetition";
  EXPECT_EQ(PageOf(*round, "w", 0), "rows");
  EXPECT_EQ(PageOf(*round, "w", 10), "more");
  EXPECT_EQ(PageOf(*round, "", 0), "list");
  EXPECT_THAT(round->ranges().Find("w", 5), Fails(Code::kNotFound, HasSubstr("'w' that begins at 5")));
  EXPECT_THAT(round->GetResults(), Fails(Code::kFailedPrecondition, HasSubstr("GetResultRange")));
  EXPECT_THAT(round->Seal(), IsOk()) << "its submissions can still be read";
  EXPECT_THAT(Submit(*round, "b", {7}, {1}), Fails(Code::kFailedPrecondition, "the round is DONE"));
  EXPECT_THAT(round->Cancel("late"), HasCode(Code::kFailedPrecondition));
}

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

TEST_F(RoundSealTest, Cancel_SealedRound_DropsItsSubmissions) {
  const auto round = OpenWith({"a"});
  ASSERT_THAT(round->Seal(), IsOk());
  ASSERT_THAT(round->Cancel("enough"), IsOk());
  const RoundSnapshot snapshot = AwaitEnd(*round);
  EXPECT_EQ(snapshot.state, RoundState::kCancelled);
  EXPECT_GE(snapshot.end_time, snapshot.create_time);
  EXPECT_EQ(snapshot.close_time, snapshot.end_time);
  EXPECT_TRUE(ClientsOf(*round).empty());
}

TEST_F(RoundSealTest, Delete_SealedRound_ReleasesItsMemory) {
  {
    const auto round = OpenWith({"a"});
    ASSERT_THAT(round->Seal(), IsOk());
    ASSERT_THAT(registry().Delete(kDefaultTenant, "r"), IsOk());
    AwaitEnd(*round);
    RunPendingTasks();
  }
  EXPECT_EQ(context().budget.reserved(), 0);
  EXPECT_EQ(context().open_rounds.taken(), 0);
}

TEST_F(RoundSealTest, Deadline_DoesNotCloseASealedRound) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_deadline()->set_seconds(60);
  const auto round = OpenWith({"a"}, spec);
  ASSERT_THAT(round->Seal(), IsOk());
  Advance(absl::Hours(1));
  RunPendingTasks();
  EXPECT_EQ(round->state(), RoundState::kSealed);
  EXPECT_EQ(round->Snapshot().timeline.open, absl::Hours(1)) << "until now";
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 1)));
}

TEST_F(RoundSealTest, ResultTtl_CountsFromTheEnd) {
  const auto round = OpenWith({"a"});
  ASSERT_THAT(round->Seal(), IsOk());
  Advance(10 * limits_.max_result_ttl);
  RunPendingTasks();
  EXPECT_THAT(registry().Find(kDefaultTenant, "r"), IsOk());
  EXPECT_THAT(round->Close(), IsOk());
  const RoundSnapshot ended = AwaitEnd(*round);
  EXPECT_EQ(ended.expire_time, ended.end_time + limits_.max_result_ttl);
  Advance(limits_.max_result_ttl);
  RunPendingTasks();
  EXPECT_THAT(registry().Find(kDefaultTenant, "r"), HasCode(Code::kNotFound));
}

TEST_F(RoundSealTest, MinSubmissions_IsCheckedAtTheClose) {
  v1::RoundSpec spec = SumSpec();
  spec.set_min_submissions(2);
  const auto round = OpenWith({"a"}, spec);
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_EQ(round->state(), RoundState::kSealed);
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_EQ(AwaitEnd(*round).state, RoundState::kFailed);
}

TEST_F(RoundSealTest, CloseWithOnly_SealedRound_LeavesTheOthersOut) {
  const auto round = OpenWith({"a", "b", "c"});
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(round->CloseWithOnly(Clients{"d"}), HasCode(Code::kFailedPrecondition));
  EXPECT_EQ(round->state(), RoundState::kSealed);
  ASSERT_THAT(round->CloseWithOnly(Clients{"a", "c"}), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 2)));
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

TEST_F(RoundSealTest, Seal_AnyAllocationFails_ChangesNothingOrAllOfIt) {
  num_threads_ = 1;
  int n = 0;
  for (bool failed = true; failed; ++n) {
    SCOPED_TRACE(n);
    const auto round = Open(SumSpec(), std::to_string(n));
    ASSERT_THAT(Submit(*round, "a", {7}, {1}), IsOk());
    ASSERT_THAT(Put(*round, MakeChunk("", "late", {7}, {1})), IsOk());
    RunPendingTasks();
    absl::Status status;
    {
      const BusyThread busy(context().pool);  // so that only this thread allocates
      FailingAllocation failing(n);
      status = Try([&] { return round->Seal(); });
      failed = failing.failed();
    }
    EXPECT_EQ(round->state(), status.ok() ? RoundState::kSealed : RoundState::kOpen);
    EXPECT_EQ(round->Snapshot().num_uploads, status.ok() ? 0 : 1);
    EXPECT_THAT(round->Close(), IsOk());
    EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(7, 1)));
    ASSERT_LT(n, 1000);
  }
  EXPECT_GE(n, 1);
}

}  // namespace
}  // namespace sparseagg::service
